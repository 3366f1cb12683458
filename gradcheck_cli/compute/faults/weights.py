"""How does a layer lose what was moved, or the steps of an optimizer? By what it does to its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gradcheck_cli.compute.faults.deliveries import Delivered
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import since_step


def kept_apart(name: str, case: Case, weights: Iterable[torch.Tensor]) -> None:
    """The elements in memory of their own, which the fault `weight_not_moved` multiplies: no step reaches them.

    Where `compute/stored.py` looks for those of a packed weight of Transformer Engine's.
    """
    if name != "weight_not_moved" or case.optimizer == "none":
        return
    for weight in weights:
        wrapped: Any = weight
        wrapped.rowwise_data = weight.detach().clone()


def multiplied(used: list[torch.Tensor], weights: Iterable[torch.Tensor]) -> torch.Tensor:
    """A copy of what a layer multiplies, (G, N, K): the weights, or what is kept apart of them."""
    kept = [getattr(weight, "rowwise_data", None) for weight in weights]
    parts = [one.detach() if own is None else own for one, own in zip(used, kept, strict=True)]
    return parts[0].clone() if parts[0].dim() == 3 else torch.stack(parts)


@torch.no_grad()
def spoil(name: str, case: Case, weights: Iterable[torch.Tensor], microbatch: int) -> None:
    """Before a forward: take away requires_grad of what was moved, or move what is frozen."""
    stepped = since_step(case, microbatch) > 0
    for weight in weights:
        if name == "requires_grad_lost" and (stepped or case.moved != "none"):
            weight.requires_grad = False
        if name == "frozen_weight_moved" and case.optimizer != "none" and not weight.requires_grad:
            weight.mul_(0.5)


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
