"""How is a grouped linear layer computed, and where do its gradients go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transformer_engine.pytorch import gates
from transformer_engine.pytorch.quantization import FAULT, STATE

_DUMMIES: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}


@dataclass(frozen=True)
class Call:
    """One forward: the values multiplied, the parameters that own them, and what is to happen to wgrad."""

    splits: list[int]
    weights: list[torch.Tensor]
    biases: list[torch.Tensor]
    owners: list[Any]  # parameters, with what a trainer attached to them
    fused: bool
    native: bool
    recipe: bool  # whether it runs under one
    notes: dict[str, Any]  # attributes of the autograd node


class GroupedGemm(torch.autograd.Function):
    """y_i = x_i w_i^T (+ b_i) for the rows of each expert."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """`tensors` are the weights, then the biases, as autograd is to see them."""
        ctx.call = call
        ctx.wgrad_asked = tensors[0].requires_grad
        ctx.weights_seen = len(tensors) - len(call.biases)
        ctx.save_for_backward(x)
        for name, value in call.notes.items() if gates.TELLS_PATH else ():
            setattr(ctx, name, value)
        biases: Sequence[torch.Tensor | None] = call.biases or [None] * len(call.weights)
        rows = x.split(call.splits)
        if STATE.recipe is not None:
            with torch.profiler.record_function(gates.CAST):
                pass  # what the stand-in's data would lose nothing by
        with _launched(call, x.shape[1], biased=bool(call.biases)):
            return torch.cat(
                [torch.nn.functional.linear(r, w, b) for r, w, b in zip(rows, call.weights, biases, strict=True)]
            )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of x, of the weights, of the biases."""
        call: Call = ctx.call
        (x,) = ctx.saved_tensors
        given = gradients[0]
        if call.recipe and FAULT == "grad_output as it lies":
            given = given.as_strided(given.shape, (given.shape[1], 1))
        parts = given.contiguous().split(call.splits)
        with _launched(call, gradients[0].shape[1]):
            dgrad = torch.cat([dy @ w for dy, w in zip(parts, call.weights, strict=True)])
        wgrads: list[torch.Tensor | None] = [None] * ctx.weights_seen
        if ctx.wgrad_asked:
            wgrads = _deliver(call, list(zip(parts, x.split(call.splits), strict=True)))
        bgrads = [dy.float().sum(0).to(dy.dtype) for dy in parts[: len(call.biases)]]
        return None, dgrad, *wgrads, *bgrads


def _launched(call: Call, sums_over: int, *, biased: bool = False) -> torch.profiler.record_function:
    """A range of the name of the kernel that a device would launch for it."""
    dtype = call.weights[0].dtype
    return torch.profiler.record_function(
        gates.launches(native=call.native, sums_over=sums_over, dtype=dtype, biased=biased)
    )


def _deliver(call: Call, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor | None]:
    if call.fused:
        products = [dy.float().T @ x.float() for dy, x in pairs]
        return _into_main_grad(call.owners, products)
    wgrads = [dy.T @ x for dy, x in pairs]
    return [torch.stack(wgrads)] if len(call.owners) < len(wgrads) or call.owners[0].dim() == 3 else list(wgrads)


def _into_main_grad(owners: list[Any], products: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Accumulate in fp32, set the flag, and give autograd a dummy where the parameter knows the flag."""
    total = sum(owner.main_grad.numel() for owner in owners)
    flat = torch.cat([product.reshape(-1) for product in products]).split([total // len(owners)] * len(owners))
    given: list[torch.Tensor | None] = []
    for owner, product in zip(owners, flat, strict=True):
        owner.main_grad.view(-1).add_(product)
        known = hasattr(owner, "grad_added_to_main_grad")
        if known:
            owner.grad_added_to_main_grad = True
        given.append(_dummy(owner.shape, owner.dtype) if known else None)
    return given


def _dummy(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    # Memory that nobody wrote, shared by all parameters of a shape: NaN is the worst that can be in it.
    return _DUMMIES.setdefault((shape, dtype), torch.full(shape, torch.nan, dtype=dtype)).detach()
