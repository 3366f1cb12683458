"""How are x and grad_output handed over? With a padded tail or without, and as the case wants them to lie in memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradcheck_cli.compute.lent import GUARD_BYTE, Guarded, guarded
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS


def padded(case: Case, values: torch.Tensor) -> torch.Tensor:
    """(T, C) with the case's tail below it, (T + tail_rows, C): no gradient may depend on what is in there."""
    if not case.tail_rows:
        return values
    return torch.cat([values, values.new_full((case.tail_rows, values.shape[1]), filling(case))])


def filling(case: Case) -> float:
    """What every element of the tail is; 0 as well where there is none."""
    large = FORMATS[case.dtype].largest / 4
    return {"none": 0.0, "zero": 0.0, "large": large, "nan": torch.nan}[case.padded_tail]


def laid(name: str, values: torch.Tensor, layout: str, byte: int) -> Guarded:
    """A guarded copy of values (R, C): contiguous, a view of the transposed matrix, or one element off alignment."""
    if layout == "transposed":
        across = guarded(name, values.T.contiguous(), byte)
        return replace(across, tensor=across.tensor.T)
    return guarded(name, values, byte, off=int(layout == "offset"))


def x_of(case: Case, values: torch.Tensor, byte: int) -> tuple[Guarded, torch.Tensor]:
    """x of one microbatch as the layer gets it, and what is in it; under autocast the same numbers in fp32."""
    whole = padded(case, values.float() if case.autocast else values)
    return laid("x", whole, case.input_layout, byte), whole


def grad_output_of(case: Case, values: torch.Tensor, byte: int = GUARD_BYTE) -> tuple[Guarded, torch.Tensor]:
    """The incoming gradient, in its own storage or as the scalar that `.sum().backward()` expands with strides 0."""
    if case.grad_output == "expanded":
        ones = values.new_ones((len(values) + case.tail_rows, values.shape[1]))
        scalar = guarded("grad_output", torch.ones((), dtype=values.dtype, device=values.device), byte)
        return replace(scalar, tensor=scalar.tensor.expand(ones.shape)), ones
    whole = padded(case, values)
    return laid("grad_output", whole, case.grad_output, byte), whole
