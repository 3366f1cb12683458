"""How does a number go wrong by its format? Fewer digits or fewer exponents than asked, on the way or in the end."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.faults.scene import At
from gradcheck_cli.records.dtype import FORMATS

PARTIAL_SUMS = 16


def summed_in_bf16(at: At) -> torch.Tensor:
    """Some partial sums, each rounded to bf16."""
    a, b = at.scene.factors(at.expert)
    size = -(-len(b) // PARTIAL_SUMS)
    running = torch.zeros_like(a[:, :1] @ b[:1])
    for some, others in zip(a.split(size, 1), b.split(size), strict=True):
        running = (running + some @ others).bfloat16().double()
    return at.part + (running - a @ b).reshape(at.part.shape)


def operands_in_bf16(at: At) -> torch.Tensor:
    """Both operands rounded before they are multiplied."""
    a, b = at.scene.factors(at.expert)
    return at.part + (a.bfloat16().double() @ b.bfloat16().double() - a @ b)


def operands_in_fp16(at: At) -> torch.Tensor:
    """Both operands as fp16 has them, with its exponents: what is too small for them is 0, too large infinite."""
    a, b = at.scene.factors(at.expert)
    return at.part + (a.half().double() @ b.half().double() - a @ b)


def result_in_fp16(at: At) -> torch.Tensor:
    """The result as fp16 has it; nothing, where the case asks for fp16."""
    return at.part if at.scene.case.dtype == "fp16" else at.part.half().double()


def flushed(at: At) -> torch.Tensor:
    """What is too small for a normal number of the dtype as 0."""
    smallest = 2.0 ** FORMATS[at.scene.case.dtype].smallest_exponent
    return torch.where(at.part.abs() < smallest, 0.0, at.part)
