"""How does a right gradient get lost on its way to the trainer? From a right delivery to an altered one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from gradcheck_cli.compute.provider import DTYPES


@dataclass(frozen=True)
class Delivered:
    """What one parameter, or one expert's part of it, holds once a microbatch is done.

    `steps` are the right contributions of the microbatches that it holds, of the parameter's shape; `on_top` says
    whether they were added to the prefill. A bias has no main_grad.
    """

    expert: int
    packed: bool
    fused: bool
    dtype: str
    steps: list[torch.Tensor]
    prefill: torch.Tensor | None
    grad: torch.Tensor | None
    main_grad: torch.Tensor | None = None
    flag: bool | None = None
    replaced: bool = False
    hooks: int | None = None  # how often autograd was handed its gradient, or a dummy
    on_top: bool = True
    frozen: bool = False
    paired: tuple[int, ...] = ()  # of the steps those of tied weights that share a backward with another
    moved: bool = False  # whether the parameter was moved, or stepped by an optimizer
    dummy: str = "any"  # what `.grad` may hold beside a fused main_grad: any, zero, none

    @property
    def own(self) -> torch.Tensor | None:
        """The buffer in which the gradient belongs."""
        return self.main_grad if self.fused else self.grad

    def with_own(self, tensor: torch.Tensor | None) -> Delivered:
        """The same with another tensor there."""
        return replace(self, main_grad=tensor) if self.fused else replace(self, grad=tensor)

    def plus(self, terms: list[torch.Tensor]) -> Delivered:
        """The same with some more in the gradient's own buffer."""
        if self.own is None or not terms:
            return self
        total = self.own.double()
        for term in terms:
            total = total + term.double()
        return self.with_own(total.to(self.own.dtype))

    @property
    def told(self) -> bool:
        """Whether any microbatch had something to deliver."""
        return any(bool(step.any()) for step in self.steps)


Deliver = Callable[[Delivered], Delivered]


def missing(right: Delivered) -> Delivered:
    """No buffer at all."""
    return right.with_own(None)


def missing_but_first(right: Delivered) -> Delivered:
    """No buffer, but for the first expert's; a packed parameter has one or none."""
    return right if right.packed or not right.expert else missing(right)


def untouched(right: Delivered) -> Delivered:
    """main_grad as it was, and nothing else."""
    fits = right.fused and right.told
    return replace(right, main_grad=right.prefill, grad=None, flag=False) if fits else right


def untouched_flag_set(right: Delivered) -> Delivered:
    """main_grad as it was, and an announcement."""
    return replace(right, main_grad=right.prefill) if right.fused and right.told else right


def in_grad(right: Delivered) -> Delivered:
    """The sum in .grad, main_grad as it was."""
    if not right.fused or not right.told:
        return right
    total = torch.stack(right.steps).sum(0).to(DTYPES[right.dtype])
    return replace(right, main_grad=right.prefill, grad=total, flag=False)


def in_both(right: Delivered) -> Delivered:
    """The sum in .grad, and added to main_grad."""
    if right.fused or right.prefill is None:
        return right
    total = torch.stack(right.steps).sum(0)
    return replace(right, main_grad=(right.prefill.double() + total).to(right.prefill.dtype))


def in_main_grad(right: Delivered) -> Delivered:
    """The sum added to main_grad, which says so, and .grad None."""
    fits = not right.fused and right.told and right.prefill is not None
    return replace(in_both(right), grad=None, flag=True) if fits else right


def flag(*, fused: bool) -> Deliver:
    """The flag that belongs to the other way of delivery."""
    return lambda right: replace(right, flag=not fused) if right.fused is fused and right.flag is not None else right


def hooks(calls: int) -> Deliver:
    """Autograd is handed as many gradients of the parameter."""
    return lambda right: right if right.hooks is None else replace(right, hooks=calls)


def dummy_shape(right: Delivered) -> Delivered:
    """A dummy of three elements."""
    dummy = right.steps[0].new_zeros(3).to(DTYPES[right.dtype])
    return replace(right, grad=dummy) if right.fused else right


def only_some(kept: slice) -> Deliver:
    """The sum of some microbatches."""

    def deliver(right: Delivered) -> Delivered:
        lost = list(range(len(right.steps)))
        del lost[kept]
        return right.plus([-right.steps[k] for k in lost])

    return deliver


def use_lost(right: Delivered) -> Delivered:
    """The sum without one of two uses: the last that brought something."""
    return right.plus([-step for step in (right.steps[k] for k in right.paired) if step.any()][-1:])


def prefill_lost(right: Delivered) -> Delivered:
    """main_grad without what was there."""
    return right.plus([-right.prefill]) if right.fused and right.prefill is not None and right.on_top else right


def not_overwritten(right: Delivered) -> Delivered:
    """main_grad with what was there as well."""
    return right.plus([right.prefill]) if right.fused and right.prefill is not None and not right.on_top else right


def requires_grad_lost(right: Delivered) -> Delivered:
    """Nothing at all for what was moved."""
    if not right.moved or right.frozen:
        return right
    lost = replace(right, grad=None, hooks=right.hooks and 0, flag=right.flag and False)
    return replace(lost, main_grad=right.prefill) if right.fused else lost


def frozen_given(right: Delivered) -> Delivered:
    """The gradient of what asks for none."""
    if not right.frozen or not right.told:
        return right
    return replace(right, grad=torch.stack(right.steps).sum(0).to(DTYPES[right.dtype]))


def frozen_main_grad(right: Delivered) -> Delivered:
    """The same in main_grad."""
    if not right.frozen or right.main_grad is None or not right.told:
        return right
    return replace(right, main_grad=(right.main_grad.double() + torch.stack(right.steps).sum(0)).to(right.main_grad))


def dummy(kind: str, content: float) -> Deliver:
    """A dummy of some content where it must be zero, or where there must be none."""

    def deliver(right: Delivered) -> Delivered:
        if not right.fused or right.dummy != kind:
            return right
        return replace(right, grad=torch.full_like(right.steps[0], content).to(DTYPES[right.dtype]))

    return deliver


def overwritten(right: Delivered) -> Delivered:
    """main_grad with the last microbatch alone."""
    return prefill_lost(only_some(slice(-1, None))(right)) if right.fused else right


def doubled_before_each(right: Delivered) -> Delivered:
    """buffer = 2 buffer + step, from the prefill on."""
    count = len(right.steps)
    more = [(2.0 ** (count - 1 - k) - 1) * step for k, step in enumerate(right.steps)]
    if right.fused and right.prefill is not None and right.on_top:
        more.append((2.0**count - 1) * right.prefill)
    return right.plus(more)


def accumulated_in_bf16(right: Delivered) -> Delivered:
    """A buffer that holds no more than bf16 does."""
    if right.own is None or right.own.dtype is torch.bfloat16:
        return right
    from_zero = not right.fused or right.prefill is None or not right.on_top
    running = torch.zeros_like(right.own) if from_zero or right.prefill is None else right.prefill
    for step in right.steps:
        running = (running.double() + step.to(DTYPES[right.dtype]).double()).bfloat16()
    return right.with_own(running.to(right.own.dtype))


def other_dtype(right: Delivered) -> Delivered:
    """fp32 instead of a narrower dtype, bf16 instead of fp32."""
    own = right.own
    if own is None:
        return right
    return right.with_own(own.bfloat16() if own.dtype is torch.float32 else own.float())


def other_shape(right: Delivered) -> Delivered:
    """The same elements in a row, with a dimension more than any parameter has."""
    return right if right.own is None else right.with_own(right.own.reshape(1, 1, 1, -1))


DELIVERIES: dict[str, Deliver] = {
    "missing": missing,
    "missing_but_first": missing_but_first,
    "untouched": untouched,
    "untouched_flag_set": untouched_flag_set,
    "in_grad": in_grad,
    "in_main_grad": in_main_grad,
    "in_both": in_both,
    "flag_not_set": flag(fused=True),
    "flag_set": flag(fused=False),
    "hook_lost": hooks(0),
    "hook_twice": hooks(2),
    "dummy_shape": dummy_shape,
    "main_grad_replaced": lambda right: right if right.main_grad is None else replace(right, replaced=True),
    "overwritten": overwritten,
    "last_only": only_some(slice(-1, None)),
    "first_only": only_some(slice(0, 1)),
    "use_lost": use_lost,
    "prefill_lost": prefill_lost,
    "not_overwritten": not_overwritten,
    "requires_grad_lost": requires_grad_lost,
    "frozen_given": frozen_given,
    "frozen_main_grad": frozen_main_grad,
    "dummy_not_zero": dummy("zero", 1.0),
    "dummy_unasked": dummy("none", 0.0),
    "doubled_before_each": doubled_before_each,
    "accumulated_in_bf16": accumulated_in_bf16,
    "other_dtype": other_dtype,
    "other_shape": other_shape,
}
