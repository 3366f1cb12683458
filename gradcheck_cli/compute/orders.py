"""In which orders may microbatches be added to a buffer? Two uses of tied weights meet in one step, either one first.

Autograd adds the gradients of both uses, each stored by then, and `.grad` or a hook gets their sum: one rounding more
to the activations' dtype, in either order the same (torch/csrc/autograd/input_buffer.cpp). A layer that adds to
main_grad by itself, or whose backward_dw() adds to `.grad`, does so use by use. The later use comes first as a rule,
since autograd takes the ready node of the latest forward; a device's thread may begin before both are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import permutations

import torch

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import steps_of

Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def orders(case: Case, microbatches: int) -> list[list[tuple[int, ...]]]:
    """The orders in which the microbatches of each step so far may be added."""
    return [list(permutations(step)) for step in steps_of(case) if step[-1] < microbatches]


def in_any_order(
    case: Case, values: Sequence[torch.Tensor], start: torch.Tensor, add: Add, join: Add | None
) -> list[torch.Tensor]:
    """What a buffer may hold once the values of all microbatches were added to it, in every order; `add` rounds.

    Where there is a `join`, the uses of each step may also have been joined by it, and their sum added.
    """
    reached = start.unsqueeze(0)
    for step in orders(case, len(values)):
        ends = [reduce(add, [values[k] for k in order], reached) for order in step]
        reached = ends[0] if len(ends) == 1 else distinct(torch.cat(ends))
    if not case.tied_weights or join is None:
        return list(reached)
    sums = [reduce(join, [values[k] for k in order]) for order, *_ in orders(case, len(values))]
    return [reduce(add, sums, start), *reached]


def at_once(case: Case, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The sum of the uses of each step, unrounded, as one GEMM over the tokens of both makes it."""
    return [reduce(torch.add, [values[k] for k in order]) for order, *_ in orders(case, len(values))]


def distinct(several: torch.Tensor) -> torch.Tensor:
    """Of each element its different values, along the first dimension; where others have more, the largest again."""
    ordered = several.sort(0).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[1:] = ordered[1:] == ordered[:-1]
    most = int((~again).sum(0).max())
    return torch.where(again, ordered[-1:], ordered).sort(0).values[:most]
