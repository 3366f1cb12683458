"""What is a sum of products in fp64, and how do the errors of its accumulation grow?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from gradcheck_cli.records.rounding import Rounding


class Exact(NamedTuple):
    """A sum of products in fp64: its value, S = sum |a||b|, and Q = sqrt(sum a^2 b^2), all of one shape.

    `carried` is the deviation that its operands bring along, where they have been rounded themselves; else 0.
    """

    value: torch.Tensor
    scale: torch.Tensor
    energy: torch.Tensor
    carried: torch.Tensor | float = 0.0


def product(a: torch.Tensor, b: torch.Tensor) -> Exact:
    """a b with its scale and energy; a (M, n), b (n, P), fp64."""
    return Exact(a @ b, a.abs() @ b.abs(), (a.square() @ b.square()).sqrt())


def summed(terms: torch.Tensor) -> Exact:
    """The sum of each row's terms (M, n), as a column (M, 1)."""
    whole = (terms.sum(1), terms.abs().sum(1), terms.square().sum(1).sqrt())
    return Exact(*(column[:, None] for column in whole))


def joined(how: Callable[[list[torch.Tensor]], torch.Tensor], parts: list[Exact]) -> Exact:
    """The sums of all experts: `torch.cat` for rows, `torch.stack` for parameters."""
    return Exact(*(how(list(tensors)) for tensors in zip(*(part[:3] for part in parts), strict=True)))


def growth(rounding: Rounding, terms: torch.Tensor | float) -> torch.Tensor | float:
    """How the accumulator's error grows with the number of terms."""
    return terms if rounding.linear else terms**0.5


def gamma(rounding: Rounding, terms: torch.Tensor | float) -> torch.Tensor | float:
    """How far the accumulators of so many terms err, in units of lambda and of S."""
    whole = rounding.accumulate * growth(rounding, terms)
    if not rounding.narrow:
        return whole
    met = torch.as_tensor(terms, dtype=torch.float64)
    if rounding.promoted:  # torch before 2.13 has no clamp without a limit
        met = met.clamp(max=rounding.promoted)
    return whole + rounding.narrow * met.sqrt()
