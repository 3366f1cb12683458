"""What may a buffer hold, and how far may rounding have moved it? Contents and hypotheses, from the reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gradcheck_cli.compute.reference import Exact, Reference
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Role
from gradcheck_cli.records.rounding import Rounding


@dataclass(frozen=True)
class Content:
    """A right content in fp64 and the tensors of its bound (`records/rounding.py` gives the formula), all of one shape.

    bound = fixed + lambda_ * free + operands. None where equality is asked whatever the fill.
    """

    value: torch.Tensor
    fixed: torch.Tensor | None = None
    free: torch.Tensor | None = None
    operands: torch.Tensor | None = None


@dataclass(frozen=True)
class Contents:
    """What one role may hold in one buffer: right contents by name, and wrong ones that name a fault."""

    right: dict[str, Content]
    wrong: dict[str, torch.Tensor] = field(default_factory=dict)


def contents(
    case: Case, reference: Reference, rounding: Rounding | None, role: Role, buffer: Buffer, k: int
) -> Contents:
    """Everything `role` may hold in `buffer` once microbatch k is done, rows of all experts one below the other.

    Bounds, which cost most, are computed only where a rounding is given, and in the buffer that the case wants filled.
    """
    if role in ("fprop", "dgrad"):
        exact = reference.roles[k][role]
        value = stored(case, reference, rounding, role, k) if rounding else Content(exact.value)
        return Contents({"value": value}, {"zero": torch.zeros_like(exact.value), "doubled": 2 * exact.value})
    steps = [seen[role] for seen in reference.roles[: k + 1]]
    total = torch.stack([step.value for step in steps]).sum(0)
    wrong = {"zero": torch.zeros_like(total), "doubled": 2 * total}
    if k:
        wrong |= {"last": steps[-1].value, "first": steps[0].value}
    due = role == "bgrad" or (buffer == "main_grad") == case.fuse_wgrad_accumulation
    if buffer == "grad":
        right = accumulated(case, rounding, steps, None, rounds_first=True) if rounding and due else Content(total)
        return Contents({"sum": right}, wrong)
    prefill = reference.inputs.prefill.double()
    wrong = {f"prefill+{name}": prefill + value for name, value in wrong.items() if name != "zero"}
    wrong |= {"zero": torch.zeros_like(total), "sum": total, "prefill": prefill}
    added = Content(prefill + total)
    if rounding and due:
        added = accumulated(case, rounding, steps, prefill, rounds_first=rounding.rounds_before_adding)
    return Contents({"prefill+sum": added, "prefill": Content(prefill)}, wrong)


def stored(case: Case, reference: Reference, rounding: Rounding, role: Role, k: int) -> Content:
    """fprop or dgrad of one microbatch, stored once, or twice where a bias is added to what was stored."""
    exact = reference.roles[k][role]
    fixed = rounding.store * exact.value.abs() + rounding.floor
    if role == "fprop" and case.bias:  # some paths store the product, then add the bias and store again
        fixed = 2 * fixed + rounding.store * _bias_rows(case, reference, k)
    terms = case.in_features if role == "fprop" else case.out_features
    free = rounding.accumulate * growth(rounding, terms) * exact.scale
    return Content(exact.value, fixed, free, rounding.operands * exact.energy)


def accumulated(
    case: Case, rounding: Rounding, steps: list[Exact], prefill: torch.Tensor | None, *, rounds_first: bool
) -> Content:
    """Microbatches added one after the other to a buffer that held `prefill` (None: nothing, so the first is stored).

    `rounds_first`: each microbatch's sum is stored in the activation dtype, then added; otherwise the GEMM adds the
    buffer in its accumulator and rounds once.
    """
    running = torch.zeros_like(steps[0].value) if prefill is None else prefill
    fixed, free, operands = (torch.zeros_like(running) for _ in range(3))
    for j, step in enumerate(steps):
        terms = torch.tensor(case.splits(j), device=running.device, dtype=torch.float64)
        terms = terms.view(-1, *[1] * (running.dim() - 1))
        scale = step.scale
        if rounds_first:
            fixed = fixed + rounding.store * step.value.abs() + rounding.floor
        else:
            terms, scale = terms + 1, scale + running.abs()
        running = running + step.value
        if prefill is not None or j:
            fixed = fixed + rounding.buffer * running.abs()
        free = free + rounding.accumulate * growth(rounding, terms) * scale
        operands = operands + rounding.operands * step.energy
    # An expert without tokens adds exactly nothing: no rounding may be pleaded for it.
    touched = torch.stack([step.scale for step in steps]).sum(0) > 0
    return Content(running, fixed * touched, free * touched, operands * touched)


def growth(rounding: Rounding, terms: torch.Tensor | float) -> torch.Tensor | float:
    """How the accumulator's error grows with the number of terms."""
    return terms if rounding.linear else terms**0.5


def _bias_rows(case: Case, reference: Reference, k: int) -> torch.Tensor:
    """|b_i| for each row of expert i, (T, N)."""
    bias = reference.inputs.bias
    assert bias is not None  # noqa: S101  the caller asked case.bias
    splits = torch.tensor(case.splits(k), device=bias.device)
    return bias.double().abs().repeat_interleave(splits, dim=0)
