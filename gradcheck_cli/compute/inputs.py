"""What data does a case run on? Seeded x, weights, biases, grad_output and prefill, in one of two fills."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import Fill

# Exact fill: integers of magnitude 1 to this. Larger ones tell more faults apart, smaller ones need less thinning.
LARGEST = {"bf16": 2, "fp16": 8, "fp32": 64}


@dataclass(frozen=True)
class Inputs:
    """All tensors of one case and fill, on the device, in the case's dtype; prefill in fp32.

    Shapes: weight (G, N, K); bias (G, N) or None; x[k] (T_k, K) and grad_output[k] (T_k, N) of microbatch k;
    prefill (G, N, K).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    x: tuple[torch.Tensor, ...]
    grad_output: tuple[torch.Tensor, ...]
    prefill: torch.Tensor


# Named each time: a candidate may have changed torch's default dtype or device at its import, and data rounded by it
# would hide what it rounds.
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

Draw = Callable[[str, tuple[int, ...]], torch.Tensor]


def draw(case: Case, fill: Fill, device: torch.device, thinning: int = 0) -> Inputs:
    """The data of a case: the same on every device and for every provider, api, path and layout.

    Drawn on the CPU from a seed made of the case's shape and data axes; `thinning` halves the budget of the exact
    fill that many times.
    """
    generator = torch.Generator(device="cpu").manual_seed(zlib.crc32(f"{case}/{fill}/{thinning}".encode()))
    one = exact(case, generator, thinning) if fill == "exact" else normal(case, generator)
    dtype, rows = DTYPES[case.dtype], [sum(case.splits(k)) for k in range(case.microbatches)]
    experts, n, k_ = case.num_gemms, case.out_features, case.in_features

    def ready(tensor: torch.Tensor, to: torch.dtype = dtype) -> torch.Tensor:
        return tensor.to(to).to(device)

    return Inputs(
        weight=ready(one("weight", (experts, n, k_))),
        bias=ready(one("bias", (experts, n))) if case.bias else None,
        x=tuple(ready(one("x", (t, k_))) for t in rows),
        grad_output=tuple(ready(_grad_output(case, one, (t, n))) for t in rows),
        prefill=ready(one("prefill", (experts, n, k_)), torch.float32),
    )


def _grad_output(case: Case, one: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape, **_PLAIN) if case.grad_output == "expanded" else one("grad_output", shape)


def normal(case: Case, generator: torch.Generator) -> Draw:
    """Normal data of unit outputs: x, grad_output and bias N(0, 1), weights N(0, 1/K); |prefill| is at least 1/2."""

    def one(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, **_PLAIN)
        if name == "weight":
            return values / math.sqrt(case.in_features)
        if name == "prefill":
            return values + values.sign() * 0.5
        return values

    return one


def exact(case: Case, generator: torch.Generator, thinning: int) -> Draw:
    """Small integers, thinned so that every partial and stored result is an integer its dtype holds.

    Only likely here: `reference.py` checks it on the data drawn.
    """
    largest = LARGEST[case.dtype]
    density = densities(case, thinning)

    def one(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "prefill":
            return prefill(shape)
        magnitude = torch.randint(1, largest + 1, shape, generator=generator, device="cpu")
        sign = torch.randint(0, 2, shape, generator=generator, device="cpu") * 2 - 1
        kept = torch.rand(shape, generator=generator, **_PLAIN) < density.get(name, 1.0)
        return (magnitude * sign * kept).float()

    return one


def prefill(shape: tuple[int, ...]) -> torch.Tensor:
    """Integers +-1 to +-7, nowhere zero, different between neighbours and between experts."""
    experts, rows, columns = (torch.arange(size, device="cpu") for size in shape)
    total = 5 * experts[:, None, None] + 3 * rows[None, :, None] + columns[None, None, :]
    return ((total % 7 + 1) * (1 - 2 * (total % 2))).float()


def densities(case: Case, thinning: int) -> dict[str, float]:
    """The share of nonzero elements of each tensor that keeps the mean of sum |a||b| a third below what is exact.

    Each constraint says: this many products (or terms) of these tensors meet in one result.
    """
    mean = (LARGEST[case.dtype] + 1) / 2
    budget = FORMATS[case.dtype].largest_exact_integer / 3 / 2**thinning
    busiest = max(sum(column) for column in zip(*(case.splits(k) for k in range(case.microbatches)), strict=True))
    fixed = {"grad_output"} if case.grad_output == "expanded" else set()
    share = {"x": 1.0, "weight": 1.0, "grad_output": 1.0}
    constraints: list[tuple[int, tuple[str, ...]]] = [
        (case.in_features, ("x", "weight")),
        (case.out_features, ("weight", "grad_output")),
        (busiest, ("x", "grad_output")),
        *([(busiest, ("grad_output",))] if case.bias else []),
    ]
    for _ in range(4):
        for terms, names in constraints:
            size = terms * math.prod(share[name] * (1.0 if name in fixed else mean) for name in names)
            free = [name for name in names if name not in fixed]
            for name in free if size > budget else ():
                share[name] *= (budget / size) ** (1 / len(free))
    return share
