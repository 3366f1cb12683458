"""Do gradients share memory? Two of them, or elements of one."""

from __future__ import annotations

import itertools

import torch


def overlapping(grads: dict[str, torch.Tensor | None]) -> list[str]:
    """The names of gradients of which elements share their memory, with each other or with those of one before."""
    there = {
        name: one for name, one in grads.items() if one is not None and one.layout is torch.strided and one.numel()
    }
    within = [name for name, one in there.items() if _within(one)]
    # Of views that lie interleaved, as columns of one matrix do, the ends say nothing.
    whole = sorted((one.data_ptr(), one.nbytes, name) for name, one in there.items() if one.is_contiguous())
    across = [name for (start, size, _), (begin, _, name) in itertools.pairwise(whole) if begin < start + size]
    return [*within, *across]


def _within(grad: torch.Tensor) -> bool:
    """Whether a tensor may reach one place by two ways: a stride shorter than what the smaller strides span."""
    span = 0
    for stride, size in sorted(zip(grad.stride(), grad.shape, strict=True)):
        if size > 1:
            if stride <= span:
                return True
            span += stride * (size - 1)
    return False
