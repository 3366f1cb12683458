"""What may a buffer rightly hold, and how may rounding have moved it? From the reference, for each fill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import msgspec
import torch

from gradcheck_cli.compute.chain import carried
from gradcheck_cli.compute.orders import Add, at_once, in_any_order, orders
from gradcheck_cli.compute.products import Exact, gamma
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.reference import Reference
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import anew, due, since_step
from gradcheck_cli.records.observation import Buffer, Fill, Role
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS, contracted, is_chain
from gradcheck_cli.records.rounding import Rounding


@dataclass(frozen=True)
class Content:
    """A right content in fp64 and the tensors of its bound (`records/rounding.py` gives the formula), all of one shape.

    bound = fixed + lambda_ * free + operands; what the operands of a chain carry is in `free`. None where equality is
    asked; then an element may also equal that of one of `otherwise`, where another order of the same roundings is as
    right.
    """

    value: torch.Tensor
    fixed: torch.Tensor | None = None
    free: torch.Tensor | None = None
    operands: torch.Tensor | None = None
    otherwise: tuple[torch.Tensor, ...] = ()
    base: torch.Tensor | None = None  # what is held without this gradient; None where that is nothing

    def part(self, rows: slice) -> Content:
        """The same of some rows of the flattened tensors (R, C)."""

        def of(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.reshape(-1, tensor.shape[-1])[rows]

        others = {name: getattr(self, name) for name in ("fixed", "free", "operands", "base")}
        given = {name: None if t is None else of(t) for name, t in others.items()}
        return Content(of(self.value), otherwise=tuple(map(of, self.otherwise)), **given)


def contents(  # noqa: PLR0913, PLR0917  one slot is named by four of them
    case: Case,
    reference: Reference,
    rounding: Rounding,
    role: Role,
    buffer: Buffer,
    k: int,
    before: torch.Tensor | None = None,
) -> dict[str, Content]:
    """What `role` may rightly hold in `buffer` once microbatch k is done, by name, rows of all experts in order.

    Bounds and roundings are computed only in the buffer that the case wants filled. `before` is what the buffer held
    where nothing may be added yet: it must hold that still.
    """
    if before is not None:
        return {"before": Content(before.double())}
    fill = reference.fill
    if role in BY_TOKEN:
        if fill == "normal":
            return {"value": stored(case, reference, rounding, role, k)}
        return {"value": predicted(case, reference, role, k)}
    since = since_step(case, k)
    steps = [_exact(case, reference, rounding, role, j) for j in range(k + 1)]
    steps[:since] = [Exact(*[torch.zeros_like(one.value)] * 3) for one in steps[:since]]
    own = role == "bgrad" or (buffer == "main_grad") == case.fuse_wgrad_accumulation
    prefill = reference.inputs.prefill_of(role).double()
    start, left = standing(case, prefill, steps) if role in WEIGHTS else (prefill, steps)
    if buffer == "grad":
        held = {"sum": _summed(case, rounding, fill if own else "exact", left, None, rounds_first=True)}
        return held | ({"zero": Content(torch.zeros_like(steps[0].value))} if case.zero_out_wgrad else {})
    rounds = rounding.rounds_before_adding
    added = _summed(case, rounding, fill if own else "exact", left, start, rounds_first=rounds)
    name = "written" if anew(case) else "prefill+sum"
    # What learns was zeroed with the gradients of the microbatches before.
    return {name: replace(added, base=start), "prefill": Content(start if since and anew(case) else prefill)}


def _exact(case: Case, reference: Reference, rounding: Rounding, role: Role, k: int) -> Exact:
    """A product, of a chain with what the roundings of its operands lead to."""
    exact = reference.roles[k][role]
    return exact._replace(carried=carried(case, reference.inputs, k, role, rounding)) if is_chain(case) else exact


def standing(case: Case, prefill: torch.Tensor, steps: list[Exact]) -> tuple[torch.Tensor, list[Exact]]:
    """What main_grad still holds of its prefill and of each microbatch: what was overwritten, or zeroed, is zero."""
    if not anew(case):
        return prefill, steps
    where = [due(case, i, len(steps) - 1) for i in range(case.num_gemms)]

    def of(tensor: torch.Tensor, kept: list[bool]) -> torch.Tensor:
        return tensor * torch.tensor(kept, device=tensor.device).view(-1, *[1] * (tensor.dim() - 1))

    def left_of(step: Exact, kept: list[bool]) -> Exact:
        own = step.carried if isinstance(step.carried, float) else of(step.carried, kept)
        return Exact(of(step.value, kept), of(step.scale, kept), of(step.energy, kept), own)

    kept = [[one is not None and one.since <= j for one in where] for j in range(len(steps))]
    left = [left_of(step, kept[j]) for j, step in enumerate(steps)]
    return of(prefill, [one is None or one.prefill for one in where]), left


def _summed(
    case: Case, rounding: Rounding, fill: Fill, steps: list[Exact], prefill: torch.Tensor | None, *, rounds_first: bool
) -> Content:
    """A buffer after some microbatches: with its bound, with each rounding done, or as it is."""
    if fill == "normal":
        return accumulated(case, rounding, steps, prefill, rounds_first=rounds_first)
    start = torch.zeros_like(steps[0].value) if prefill is None else prefill
    whole = torch.stack([start, *(step.value for step in steps)]).sum(0)
    if fill == "exact":
        return Content(whole)
    main_grad = prefill is not None
    own = [as_stored(case, step.value) if rounds_first else step.value for step in steps]

    def held(value: torch.Tensor) -> torch.Tensor:
        return as_held(case, value, in_main_grad=main_grad)

    def sums(add: Add) -> list[torch.Tensor]:
        return in_any_order(case, own, start, add, (lambda a, b: as_stored(case, a + b)) if rounds_first else None)

    first, *others = sums(lambda sum_, new: held(sum_ + new))
    # A GEMM may round its product to a narrow main_grad's dtype before it adds the buffer: cuBLAS does, for bf16 on
    # Hopper. Else nothing rounded but the end is as right, whoever was to round.
    narrow = main_grad and case.main_grad_dtype != "fp32"
    others += sums(lambda sum_, new: held(sum_ + held(new))) if narrow else [held(whole)]
    if case.tied_weights:  # one GEMM for both uses, in which nothing rounds between them
        both = [as_stored(case, one) if rounds_first else one for one in at_once(case, [step.value for step in steps])]
        others += [reduce(lambda sum_, new: held(sum_ + new), both, start)]
        others += [reduce(lambda sum_, new: held(sum_ + held(new)), both, start)] if narrow else []
    return Content(first, otherwise=tuple(others))


def as_held(case: Case, value: torch.Tensor, *, in_main_grad: bool) -> torch.Tensor:
    """Integers as a buffer holds them, in fp64: .grad in the case's dtype, main_grad in its own; fp32 holds all."""
    if not in_main_grad:
        return as_stored(case, value)
    return value.to(DTYPES[case.main_grad_dtype]).double()


def as_stored(case: Case, value: torch.Tensor) -> torch.Tensor:
    """Integers rounded to the case's dtype, to the nearest and ties to even, in fp64."""
    return value.to(DTYPES[case.dtype]).double()


def predicted(case: Case, reference: Reference, role: Role, k: int) -> Content:
    """fprop or dgrad of one microbatch on integers: as it is, or rounded once, or before and after a bias is added."""
    value = reference.roles[k][role].value
    if reference.fill == "exact":
        return Content(value)
    if role != "fprop" or not case.bias:
        return Content(as_stored(case, value))
    bias = bias_rows(case, reference, k)
    return Content(as_stored(case, value), otherwise=(as_stored(case, as_stored(case, value - bias) + bias),))


def stored(case: Case, reference: Reference, rounding: Rounding, role: Role, k: int) -> Content:
    """fprop or dgrad of one microbatch, stored once, or twice where a bias is added to what was stored."""
    exact = _exact(case, reference, rounding, role, k)
    fixed = rounding.store * exact.value.abs() + rounding.floor
    if role == "fprop" and case.bias:  # some paths store the product, then add the bias and store again
        fixed = 2 * fixed + (rounding.store + rounding.bias) * bias_rows(case, reference, k).abs()
    free = gamma(rounding, contracted(case, role)) * exact.scale + exact.carried
    return Content(exact.value, fixed, free, rounding.operands * exact.energy)


def accumulated(
    case: Case, rounding: Rounding, steps: list[Exact], prefill: torch.Tensor | None, *, rounds_first: bool
) -> Content:
    """Microbatches added one after the other to a buffer that held `prefill` (None: nothing, so the first is stored).

    `rounds_first`: each microbatch's sum is stored in the activation dtype, then added; otherwise the GEMM adds the
    buffer in its accumulator and rounds once. Of the ways in which tied uses may be added, what the worst one errs by.
    """
    running = torch.zeros_like(steps[0].value) if prefill is None else prefill
    fixed, free, operands = (torch.zeros_like(running) for _ in range(3))
    empty = prefill is None
    for ways in orders(case, len(steps)):
        if min(ways[0]) < since_step(case, len(steps) - 1):
            continue
        here = [steps[k] for k in ways[0]]
        after = reduce(torch.add, [step.value for step in here], running)
        added = [_added(case, rounding, steps, way, None if empty else running, first=rounds_first) for way in ways]
        if rounds_first and len(here) > 1:  # joined, as in an empty buffer of the activation dtype, then added
            apart = msgspec.structs.replace(rounding, buffer=rounding.store)
            joint, own = _added(case, apart, steps, ways[0], None, first=True)
            added.append((joint if empty else joint + rounding.buffer * after.abs(), own))
        fixed = fixed + reduce(torch.maximum, [one for one, _ in added])
        free = free + reduce(torch.maximum, [one for _, one in added]) + sum(step.carried for step in here)
        operands = reduce(torch.add, [rounding.operands * step.energy for step in here], operands)
        running, empty = after, False
    # An expert without tokens adds exactly nothing: no rounding may be pleaded for it.
    touched = torch.stack([step.scale for step in steps]).sum(0) > 0
    return Content(running, fixed * touched, free * touched, operands * touched)


def _added(
    case: Case,
    rounding: Rounding,
    steps: list[Exact],
    order: tuple[int, ...],
    running: torch.Tensor | None,
    *,
    first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What microbatches add to the fixed and the free part of a bound, in one order; `running` None: to nothing yet."""
    fixed, free = (torch.zeros_like(steps[0].value) for _ in range(2))
    for k in order:
        value, scale = steps[k].value, steps[k].scale
        terms = torch.tensor(case.splits(k), device=value.device, dtype=torch.float64)
        terms = terms.view(-1, *[1] * (value.dim() - 1))
        if first:
            fixed = fixed + rounding.store * value.abs() + rounding.floor
        else:
            terms, scale = terms + 1, scale if running is None else scale + running.abs()
            if case.main_grad_dtype != "fp32":  # its product may be rounded to that before it is added
                fixed = fixed + rounding.buffer * value.abs()
        if running is not None:
            fixed = fixed + rounding.buffer * (running + value).abs()
        running = value if running is None else running + value
        free = free + gamma(rounding, terms) * scale
    return fixed, free


def bias_rows(case: Case, reference: Reference, k: int) -> torch.Tensor:
    """b_i for each row of expert i, (T, N)."""
    bias = reference.inputs.bias_of(k)
    assert bias is not None  # noqa: S101  the caller asked case.bias
    splits = torch.tensor(case.splits(k), device=bias.device)
    return bias.double().repeat_interleave(splits, dim=0)
