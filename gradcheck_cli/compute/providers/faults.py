"""Does gradcheck notice? The torch loop with one fault, which is its api: to be judged, not to be trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradcheck_cli.compute.faults.deliveries import DELIVERIES, Delivered
from gradcheck_cli.compute.faults.endings import END
from gradcheck_cli.compute.faults.scene import Scene
from gradcheck_cli.compute.faults.values import VALUES
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import due, dummy_of
from gradcheck_cli.records.observation import Role


@dataclass
class Held:
    """What a parameter would rightly hold: of `.grad` and main_grad what a layer without the fault leaves there."""

    steps: list[torch.Tensor] = field(default_factory=list)
    prefill: torch.Tensor | None = None
    grad: torch.Tensor | None = None
    main_grad: torch.Tensor | None = None


Back = Callable[[torch.Tensor], torch.Tensor | None]


class Gate(torch.autograd.Function):
    """The identity, or another value in its place; on the way back the gradient goes through `back`."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, passed: torch.Tensor, back: Back) -> torch.Tensor:
        """Keep what the gradient will go through."""
        ctx.back = back
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        """The altered gradient, or none."""
        return ctx.back(grads[0].clone()), None, None


def gate(value: torch.Tensor, back: Back, passed: torch.Tensor | None = None) -> torch.Tensor:
    """The value, or what is passed in its place, whose gradient goes through `back`."""
    given: torch.Tensor = Gate.apply(value, value.detach() if passed is None else passed, back)  # type: ignore[no-untyped-call]
    return given


class FaultLayer(LoopLayer):
    """The loop candidate with one mutant's fault built in."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.case, self.mutant = case, MUTANTS[case.api]
        self.delayed = self.delayed and self.mutant.fault.kind != "early"
        self.microbatch = -1
        self.earlier: list[list[torch.Tensor]] = []
        self.given = self.x = self.w = self.g = self.step = torch.empty(0)
        self.held: dict[int, Held] = {}
        if self.mutant.fault.kind == "delivery" and self.mutant.role != "dgrad":
            own = self._weights if self.mutant.role == "wgrad" else self._biases
            for i, parameter in enumerate(own):
                # The candidate's own hook would deliver first.
                parameter._post_accumulate_grad_hooks = None  # noqa: SLF001  torch offers no other way to drop it
                parameter.register_post_accumulate_grad_hook(lambda parameter, i=i: self._deliver(parameter, i))

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        self.microbatch += 1
        for i in self.held:  # a buffer of another shape or dtype cannot be added to
            (self._weights if self.mutant.role == "wgrad" else self._biases)[i].grad = None
        self.given = x  # before its gradient goes through a gate
        used = self.used()
        weight = used[0] if self.packed else torch.stack(used)
        self.x, self.w = x.detach(), weight.detach()
        weights = gate(weight, lambda wgrad: self._kept(self._altered("wgrad", wgrad), "wgrad")).unbind()
        biases: Any = [None] * self.experts
        if len(self._biases):
            bias = torch.stack(self.bias_of_each())
            biases = gate(bias, lambda bgrad: self._kept(self._altered("bgrad", bgrad), "bgrad")).unbind()
        rows = gate(x[: sum(m_splits)], self._dgrad).split(list(m_splits))
        y = [torch.nn.functional.linear(r, w, b) for r, w, b in zip(rows, weights, biases, strict=True)]
        output = torch.cat(y)
        whole = gate(output, self._keep_grad_output, self._altered("fprop", output.detach()))
        return torch.nn.functional.pad(whole, (0, 0, 0, len(x) - sum(m_splits)))

    def backward_dw(self) -> None:
        """Nothing is left open by a layer that delivered early."""
        if self.mutant.fault.kind != "early":
            super().backward_dw()

    def _altered(self, role: Role, right: torch.Tensor) -> torch.Tensor:
        """A result of this microbatch with the fault, if it is this role's."""
        if self.mutant.role != role or self.mutant.fault.kind != "value":
            return right
        splits = list(self.case.splits(self.microbatch))
        stored = list(right.split(splits) if role in ("fprop", "dgrad") else right)
        scene = Scene(
            case=self.case,
            role=role,
            microbatch=self.microbatch,
            x=self.x,
            weight=self.w,
            grad_output=self.g,
            bias=torch.stack([bias.detach() for bias in self.bias_of_each()]) if len(self._biases) else None,
            parts=[part.double() for part in stored],
            earlier=self.earlier,
            stored=stored,
        )
        altered = VALUES[self.mutant.fault.name].altered(scene)
        self.earlier = [*self.earlier, list(scene.parts)]
        parts = [altered.get(i, part).to(right.dtype) for i, part in enumerate(scene.parts)]
        return torch.cat(parts) if role in ("fprop", "dgrad") else torch.stack(parts)

    def _dgrad(self, right: torch.Tensor) -> torch.Tensor | None:
        if self.mutant.role == "dgrad" and self.mutant.fault.kind == "delivery":
            given = Delivered(
                expert=0, packed=True, fused=False, dtype=self.case.dtype, steps=[], prefill=None, grad=right
            )
            return DELIVERIES[self.mutant.fault.name](given).grad
        return self._altered("dgrad", right)

    def _keep_grad_output(self, g: torch.Tensor) -> torch.Tensor:
        self.g = g
        if self.mutant.fault.name.startswith("frozen"):
            self._give_what_is_frozen()
        return g

    @torch.no_grad()
    def _give_what_is_frozen(self) -> None:
        """A gradient for what asks for none, which autograd therefore passes by."""
        role, rows = self.mutant.role, list(self.case.splits(self.microbatch))
        pairs = list(zip(self.x.double().split(rows), self.g.double().split(rows), strict=True))
        if role == "dgrad":
            given = torch.cat([g @ w.double() for (_, g), w in zip(pairs, self.w, strict=True)])
            parameters, steps = [self.given._base], [given]  # noqa: SLF001  the leaf that the trainer looks at
        elif role == "wgrad":
            steps = [g.T @ x for x, g in pairs]
            parameters, steps = list(self._weights), [torch.stack(steps)] if self.packed else steps
        else:
            parameters, steps = list(self._biases), [g.sum(0) for _, g in pairs]
        for parameter, step in zip(parameters, steps, strict=True):
            if parameter is None or parameter.requires_grad:
                continue
            attached: torch.Tensor | None = getattr(parameter, "main_grad", None)
            right = Delivered(
                expert=0,
                packed=False,
                fused=False,
                dtype=self.case.dtype,
                steps=[step],
                prefill=None,
                grad=None,
                main_grad=attached,
                frozen=True,
            )
            leave(parameter, DELIVERIES[self.mutant.fault.name](right))

    def _kept(self, step: torch.Tensor, role: Role) -> torch.Tensor:
        if role == self.mutant.role:
            self.step = step
        return step

    @torch.no_grad()
    def _deliver(self, parameter: torch.Tensor, i: int) -> None:
        """Leave on a parameter what the fault makes of what it would rightly hold by now."""
        role, dtype = self.mutant.role, DTYPES[self.case.dtype]
        weight = role == "wgrad"
        fused, packed = self.fused and weight, self.packed and weight
        step = self.step if packed else self.step[i]
        own = self.held.setdefault(i, Held())
        attached: torch.Tensor | None = getattr(parameter, "main_grad", None) if weight else None
        if own.prefill is None and attached is not None:
            own.prefill, own.main_grad = attached.clone(), attached.clone()
        where = due(self.case, i, self.microbatch) if weight else None
        fresh = where is not None and where.since == self.microbatch and not where.prefill and fused
        own.steps = [*([] if fresh else own.steps), step.double()]
        if fused and own.main_grad is not None:
            held = torch.zeros_like(own.main_grad) if fresh else own.main_grad
            own.main_grad = (held + step).to(held.dtype)
        elif not fused:
            own.grad = step.clone() if own.grad is None else (own.grad + step).to(dtype)
        given = DELIVERIES[self.mutant.fault.name](
            Delivered(
                expert=i,
                packed=packed,
                fused=fused,
                dtype=self.case.dtype,
                steps=own.steps,
                prefill=own.prefill,
                grad=own.grad,
                main_grad=own.main_grad,
                flag=fused if weight and hasattr(parameter, "grad_added_to_main_grad") else None,
                on_top=where is None or where.prefill,
                dummy=dummy_of(self.case),
            )
        )
        leave(parameter, given)


def leave(parameter: torch.Tensor, given: Delivered) -> None:
    """Put a delivery onto a parameter, also one that autograd would not have put there."""
    parameter.grad = None
    if given.grad is not None:
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.data = given.grad.clone()
    if given.flag is not None:
        parameter.grad_added_to_main_grad = given.flag  # type: ignore[attr-defined]
    attached: torch.Tensor | None = getattr(parameter, "main_grad", None)
    if attached is None:
        return
    main_grad = given.main_grad
    if main_grad is None or given.replaced or (main_grad.shape, main_grad.dtype) != (attached.shape, attached.dtype):
        parameter.main_grad = None if main_grad is None else main_grad.clone()  # type: ignore[attr-defined]
    else:
        attached.copy_(main_grad)


class EndingLayer(LoopLayer):
    """The loop candidate that does not come back from its first forward."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.end, self.device = END[case.api], device

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """Ends, one way or another."""
        self.end(self.device)
        return super().forward(x, m_splits)


def build(case: Case, device: torch.device) -> LoopLayer:
    """The layer whose fault is the case's api."""
    return EndingLayer(case, device) if case.api in END else FaultLayer(case, device)
