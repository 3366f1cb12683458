"""How far is what was found from what may be there? Error statistics per expert; no threshold, no opinion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from gradcheck_cli.compute.contents import Content
from gradcheck_cli.compute.found import Found
from gradcheck_cli.records.observation import INFINITE, Deviation, SlotSeen

Table = NDArray[np.float64]

# Rows of the table that leaves the device in one transfer, one column per row of the tensor.
DIFFERING, ERROR, RATIO, AFTER, LAMBDA, COLUMN, EXPECTED, FOUND = range(8)


# Expert and what was found of it, (rows, C) in its own dtype -> distance to each wrong content, by its name.
Explain = Callable[[int, torch.Tensor], dict[str, float]]


class Shown(NamedTuple):
    """What there is to be seen of one expert's right gradient."""

    nonzero: int  # elements that are not zero
    uniform: bool  # there are at least two elements, and all of them are equal


def measure(  # noqa: PLR0913  what was found, and all that it is compared with
    found: Found,
    contents: dict[str, Content],
    rows: list[int],
    lambda_: float,
    *,
    bounded: bool,
    shown: Sequence[Shown],
    explain: Explain | None = None,
    distances: bool = True,
) -> list[SlotSeen]:
    """One SlotSeen per expert; `rows[i]` is the number of rows of expert i in the flattened tensors.

    Distances to right contents are taken unless nobody asks for them, those to wrong ones (`explain`) only where
    nothing right is held.
    """
    tensors = [held.tensor for held in found.experts]
    seen = [_unmeasured(found, i) for i in range(len(tensors))]
    if all(tensor is None for tensor in tensors):
        return seen
    parts = _parts(tensors, rows, next(iter(contents.values())).value.shape[-1])
    joined = torch.cat(parts).double()
    deviations = {
        name: deviation_per_expert(joined, content, rows, lambda_, bounded=bounded)
        for name, content in contents.items()
    }
    residuals = residual_per_expert(joined, contents, rows) if distances else {}
    nonfinite = by_expert((~joined.isfinite()).sum(1, dtype=torch.float64)[None], rows)
    for i, bare in enumerate(seen):
        if tensors[i] is None:
            continue
        held = {name: per_expert[i] for name, per_expert in deviations.items()}
        away = {name: per_expert[i] for name, per_expert in residuals.items()}
        if explain and not any(holds(one, lambda_) for one in held.values()):
            away |= explain(i, parts[i])
        facts = {"nonfinite": int(nonfinite[i].sum()), "nonzero_expected": shown[i].nonzero}
        seen[i] = msgspec.structs.replace(bare, **facts, uniform=shown[i].uniform, contents=held, residuals=away)
    return seen


def _parts(tensors: list[torch.Tensor | None], rows: list[int], width: int) -> list[torch.Tensor]:
    """Each expert's rows, zeros where it has no tensor: its numbers are not looked at."""
    like = next(tensor for tensor in tensors if tensor is not None)
    return [
        (like.new_zeros(size, width) if tensor is None else tensor).reshape(-1, width)
        for tensor, size in zip(tensors, rows, strict=True)
    ]


def holds(deviation: Deviation, lambda_: float) -> bool:
    """Whether a content may be what is held, so that no other has to explain it."""
    if deviation.smallest_lambda is None:
        return deviation.differing == 0
    return deviation.smallest_lambda <= lambda_


def delivered(content: Content) -> torch.Tensor:
    """What a right gradient adds to what would be held without it: in main_grad, after rounding to fp32."""
    if content.base is None:
        return content.value
    return content.value.float().double() - content.base.float().double()


def shown_per_expert(content: Content, rows: list[int]) -> list[Shown]:
    """How much of a right gradient is not zero, and whether there is more than one number in it."""
    added = delivered(content)
    added = added.reshape(-1, added.shape[-1])
    if not added.shape[1]:
        return [Shown(0, uniform=False)] * len(rows)
    table = torch.stack([(added != 0).sum(1, dtype=torch.float64), added.amin(1), added.amax(1)])
    return [
        Shown(
            int(nonzero.sum()),
            uniform=len(nonzero) * added.shape[1] > 1
            and bool(least.min(initial=INFINITE) == most.max(initial=-INFINITE)),
        )
        for nonzero, least, most in by_expert(table, rows)
    ]


def deviation_per_expert(
    found: torch.Tensor, content: Content, rows: list[int], lambda_: float, *, bounded: bool
) -> list[Deviation]:
    """found (R, C) against one content, reduced to each expert's rows."""
    bounded = bounded and content.fixed is not None
    parts = by_expert(row_table(found, content, lambda_ if bounded else None), rows)
    return [_deviation(part, found.shape[1], bounded=bounded) for part in parts]


def _deviation(part: Table, columns: int, *, bounded: bool) -> Deviation:
    """One expert's rows, (8, rows), as the worst of them."""
    compared = part.shape[1] * columns
    top = part.max(axis=1, initial=0.0).tolist()
    # An expert without rows has no worst element: nothing was compared.
    at = int(part[RATIO if bounded else ERROR].argmax()) if compared else 0
    worst = part[:, at].tolist() if compared else [0.0] * len(part)
    return Deviation(
        compared=compared,
        differing=int(part[DIFFERING].sum()),
        largest_error=figure(top[ERROR]),
        worst=(at, int(worst[COLUMN])),
        expected=worst[EXPECTED],
        found=worst[FOUND],
        ratio=figure(top[RATIO]) if bounded else None,
        after_rounding=figure(top[AFTER]) if bounded else None,
        smallest_lambda=figure(top[LAMBDA]) if bounded else None,
    )


def figure(value: float) -> float:
    """Seven significant digits: a statistic has no more, and an observation is kept for years."""
    return float(f"{value:.6e}")


def row_table(found: torch.Tensor, content: Content, lambda_: float | None) -> torch.Tensor:
    """(8, R): each row's worst element; a non-finite element counts as infinitely wrong. No ratios without a lambda.

    What a candidate has left behind may be a content, and not finite: left alone, it does not differ.
    """
    value = nearest(found, content)
    if found.shape[1] == 0:
        return found.new_zeros(8, found.shape[0])
    same = (found == value) | (found.isnan() & value.isnan())
    error = (found - value).abs().nan_to_num(nan=INFINITE, posinf=INFINITE).masked_fill(same, 0.0)
    ratios = [] if lambda_ is None else _ratios(error, content, lambda_)
    column = (ratios[0] if ratios else error).argmax(dim=1, keepdim=True)
    none = error.new_zeros(len(error))
    return torch.stack(
        [
            (~same).sum(1, dtype=torch.float64),
            error.amax(1),
            *([ratio.amax(1) for ratio in ratios] or [none] * 3),
            column[:, 0].double(),
            _told(value.gather(1, column)[:, 0]),
            _told(found.gather(1, column)[:, 0]),
        ]
    )


def _told(elements: torch.Tensor) -> torch.Tensor:
    """As a record can hold them: JSON has no number for what is not finite."""
    return elements.nan_to_num(nan=INFINITE, posinf=INFINITE, neginf=INFINITE)


def nearest(found: torch.Tensor, content: Content) -> torch.Tensor:
    """The content; where another order of its roundings comes nearer to what was found, that one."""
    value = content.value.reshape(found.shape)
    for other in (one.reshape(found.shape) for one in content.otherwise):
        value = torch.where((found - other).abs() < (found - value).abs(), other, value)
    return value


def _ratios(error: torch.Tensor, content: Content, lambda_: float) -> list[torch.Tensor]:
    """Error to bound, the same after output rounding, and the smallest lambda, element by element."""
    parts = (content.fixed, content.free, content.operands)
    fixed, free, operands = (torch.zeros_like(error) if part is None else part.reshape(error.shape) for part in parts)
    rest = (error - fixed).clamp(min=0)
    beyond = lambda_ * free + operands
    return [_quotient(error, fixed + beyond), _quotient(rest, beyond), _quotient((rest - operands).clamp(min=0), free)]


def residual_per_expert(found: torch.Tensor, contents: dict[str, Content], rows: list[int]) -> dict[str, list[float]]:
    """|found - content| / |expected| in the Frobenius norm over each expert's finite elements."""
    finite = _finite(found)
    values = [_finite(content.value).reshape(found.shape) for content in contents.values()]
    squares = [(finite - value).square().sum(1) for value in values] + [values[0].square().sum(1)]
    parts = [np.sqrt(part.sum(axis=1)).tolist() for part in by_expert(torch.stack(squares), rows)]
    return {name: [relative(part[row], part[-1]) for part in parts] for row, name in enumerate(contents)}


def _finite(elements: torch.Tensor) -> torch.Tensor:
    return elements.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def relative(distance: float, expected: float) -> float:
    """A distance in units of what was expected; as it is where nothing was."""
    return figure(min(distance / expected, INFINITE) if expected else min(distance, INFINITE))


def _quotient(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole; 0 / 0 is 0, and anything else over 0 is INFINITE."""
    return (part / whole).nan_to_num(nan=0.0, posinf=INFINITE).clamp(max=INFINITE)


def by_expert(table: torch.Tensor, rows: list[int]) -> list[Table]:
    """(figures, R) in one transfer, cut into each expert's rows; small, and numpy needs no threads for it."""
    whole = table.cpu().numpy()
    return [whole[:, end - size : end] for size, end in zip(rows, accumulate(rows), strict=True)]


def _unmeasured(found: Found, expert: int) -> SlotSeen:
    held = found.experts[expert]
    return SlotSeen(
        role=found.role,
        expert=expert,
        buffer=found.buffer,
        present=held.present,
        shape=held.shape,
        dtype=held.dtype,
        added_flag=held.added_flag,
        hooks=held.hooks,
        replaced=held.replaced,
    )
