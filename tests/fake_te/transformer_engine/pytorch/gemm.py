"""How is a grouped linear layer computed, and where do its gradients go?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from gradcheck_cli.compute.providers.torch_quantised import Along, Kind, Quantiser
from transformer_engine.pytorch import gates
from transformer_engine.pytorch.quantization import FAULT, Float8Tensor

_DUMMIES: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}


@dataclass(frozen=True)
class Call:
    """One forward: the values multiplied, the parameters that own them, and what is to happen to wgrad."""

    splits: list[int]
    members: Sequence[Any]  # the weight of each expert, as it is kept
    weights: list[torch.Tensor]
    biases: list[torch.Tensor]
    owners: list[Any]  # parameters, with what a trainer attached to them
    fused: bool
    native: bool
    quantiser: Quantiser | None  # of the recipe that it runs under
    notes: dict[str, Any]  # attributes of the autograd node

    def operand(self, values: torch.Tensor, kind: Kind, expert: int, along: Along) -> torch.Tensor:
        """What a GEMM multiplies, in the dtype that it sums in; a weight that is kept quantised is not again."""
        if self.quantiser is None:
            return values
        member = self.members[expert]
        if kind == "weight" and isinstance(member, Float8Tensor):
            return member.dequantize(dtype=torch.float32)
        return self.quantiser.through(values, kind, expert, along)

    def in_backward(self, values: torch.Tensor, kind: Kind, expert: int, along: Along) -> torch.Tensor:
        """The same, as `backward_override` has it."""
        if self.quantiser is None or self.backward_in_fp8:
            return self.operand(values, kind, expert, along)
        if self.quantiser.override == "dequantized" and kind != "grad_output":
            return self.operand(values, kind, expert, "rows")
        return values.float()

    @property
    def backward_in_fp8(self) -> bool:
        if self.quantiser is None or FAULT == "backward in bf16":
            return False
        return self.quantiser.override == "none" or FAULT == "override forgotten"


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
        rows = [call.operand(r, "x", i, "rows") for i, r in enumerate(rows)]
        weights = [call.operand(w, "weight", i, "rows") for i, w in enumerate(call.weights)]
        with _launched(call, x.shape[1], biased=bool(call.biases), in_fp8=call.quantiser is not None):
            parts = zip(rows, weights, biases, strict=True)
            return torch.cat([linear(r, w, None if b is None else b.to(r.dtype)) for r, w, b in parts]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of x, of the weights, of the biases."""
        call: Call | None = ctx.call
        if call is None:
            raise AttributeError("ctx must have .tensor_objects to restore saved tensors")
        ctx.call = None  # what was saved is let go of, as upstream does
        if call.biases:
            gates.check_dbias(native=call.native, op="basic_op_ctxs" in call.notes)
        (x,) = ctx.saved_tensors
        given = gradients[0]
        if call.quantiser and FAULT == "grad_output as it lies":
            given = given.as_strided(given.shape, (given.shape[1], 1))
        parts, rows = given.contiguous().split(call.splits), x.split(call.splits)
        with _launched(call, gradients[0].shape[1], in_fp8=call.backward_in_fp8):
            dgrad = torch.cat(
                [
                    call.in_backward(dy, "grad_output", i, "rows") @ call.in_backward(w, "weight", i, "columns")
                    for i, (dy, w) in enumerate(zip(parts, call.weights, strict=True))
                ]
            ).to(x.dtype)
        wgrads: list[torch.Tensor | None] = [None] * ctx.weights_seen
        if ctx.wgrad_asked:
            pairs = [
                (call.in_backward(dy, "grad_output", i, "columns"), call.in_backward(r, "x", i, "columns"))
                for i, (dy, r) in enumerate(zip(parts, rows, strict=True))
            ]
            wgrads = _deliver(call, pairs, x.dtype)
        bgrads = [dy.float().sum(0).to(dy.dtype) for dy in parts[: len(call.biases)]]
        if call.quantiser:
            call.quantiser.step()
        return None, dgrad, *wgrads, *bgrads


@contextmanager
def _launched(call: Call, sums_over: int, *, in_fp8: bool, biased: bool = False) -> Iterator[None]:
    """A range of the name of each kernel that a device would launch for it."""
    gemm = gates.launches(
        native=call.native, sums_over=sums_over, dtype=call.weights[0].dtype, biased=biased, in_fp8=in_fp8
    )
    for name in (gates.CAST,) if in_fp8 else ():
        with torch.profiler.record_function(name):
            pass
    with torch.profiler.record_function(gemm):
        yield


def _deliver(
    call: Call, pairs: list[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype
) -> list[torch.Tensor | None]:
    if call.fused:
        products = [dy.float().T @ x.float() for dy, x in pairs]
        return _into_main_grad(call.owners, products)
    wgrads = [(dy.T @ x).to(dtype) for dy, x in pairs]
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
