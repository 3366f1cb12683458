"""How would plain torch do a recipe? Operands quantised and dequantised in torch's float8 types, multiplied in fp32.

What each recipe does to a tensor follows transformer_engine/common/recipe/__init__.py: the formats, and where scales
are shared. Nothing is fused, and nothing is as fast: it is what the oracle is tried on where there is no FP8.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

import torch

from gradcheck_cli.records.recipe import Recipe

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Elements that share a scale: Float8BlockScaling, of weights in both dimensions, and MXFP8.
BLOCK, MX = 128, 32
EXPONENT_BITS = 0x7F800000  # of an fp32 number without a sign

Along = Literal["rows", "columns"]  # how a block of a matrix lies; the sums of the GEMM run along it
Kind = Literal["x", "weight", "grad_output"]


class Quantiser:
    """One recipe, and for DelayedScaling what it has seen of each tensor of each expert."""

    def __init__(self, recipe: Recipe, override: str = "none") -> None:
        self.recipe, self.override = recipe, override  # backward_override of the case
        self._amax: defaultdict[tuple[Kind, int], float] = defaultdict(float)
        self._scale: defaultdict[tuple[Kind, int], float] = defaultdict(lambda: 1.0)

    def step(self) -> None:
        """Let the scales of DelayedScaling follow the largest magnitudes seen so far."""
        for (kind, expert), amax in self._amax.items():
            if amax:
                self._scale[kind, expert] = float(quotient(torch.tensor(amax, dtype=torch.float32), self.format(kind)))

    def format(self, kind: Kind) -> torch.dtype:
        """E5M2 for gradients where scales are whole tensors' (Format.HYBRID), else E4M3."""
        return E5M2 if kind == "grad_output" and self.recipe.scale == "quotient" else E4M3

    def through(self, tensor: torch.Tensor, kind: Kind, expert: int, along: Along) -> torch.Tensor:
        """A matrix quantised and dequantised, in fp32; one without elements as it is."""
        values, to = tensor.float(), self.format(kind)
        if not values.numel():
            return values
        if self.recipe.delayed:
            self._amax[kind, expert] = max(self._amax[kind, expert], float(values.abs().max()))
            return rounded(values, values.new_tensor(self._scale[kind, expert]), to)
        if self.recipe.scale == "quotient":
            return rounded(values, quotient(values.abs().max(), to), to)
        size = BLOCK if self.recipe.name == "Float8BlockScaling" else MX
        square = kind == "weight" and size == BLOCK
        tall = size if square or along == "columns" else 1
        return in_blocks(values, tall, size if square or along == "rows" else 1, to)


def in_blocks(values: torch.Tensor, tall: int, wide: int, to: torch.dtype) -> torch.Tensor:
    """Quantised and dequantised with one power of two as the scale of each block of tall x wide elements."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % wide, 0, -rows % tall))
    blocks = padded.view(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide)
    return rounded(blocks, block_scales(blocks, to), to).reshape(padded.shape)[:rows, :columns]


def block_scales(blocks: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """The largest power of two that keeps each block (R, tall, C, wide) within the format, as (R, 1, C, 1).

    A quotient without its significand's bits, as a kernel has it; a rounded logarithm may be one too large.
    """
    scales = quotient(blocks.abs().amax(dim=(1, 3), keepdim=True), to)
    return (scales.view(torch.int32) & EXPONENT_BITS).view(torch.float32)


def quotient(amax: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """A format's largest number by a tensor's, 1 where that is 0; one division, no reciprocal and a product."""
    return torch.where(amax > 0, torch.full_like(amax, torch.finfo(to).max) / amax, 1.0)


def rounded(values: torch.Tensor, scale: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """To the nearest number of an FP8 format at a scale, and back by its inverse in fp32, as a GEMM's epilogue does.

    What is too large becomes the largest.
    """
    largest = torch.finfo(to).max
    return (values * scale).clamp(-largest, largest).to(to).float() * (1 / scale)


class QuantisedLinear(torch.autograd.Function):
    """y = x w^T + b of one expert, each GEMM of quantised operands."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        quantiser: Quantiser,
        expert: int,
    ) -> torch.Tensor:
        """x (T, K), weight (N, K) and bias (N,) -> y (T, N) in x's dtype, rounded once."""
        ctx.save_for_backward(x, weight)
        ctx.quantiser, ctx.expert, ctx.bias = quantiser, expert, bias is not None
        x_q, w_q = quantiser.through(x, "x", expert, "rows"), quantiser.through(weight, "weight", expert, "rows")
        y = torch.nn.functional.linear(x_q, w_q, None if bias is None else bias.float())
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """dgrad, wgrad and bgrad, each where it is asked for."""
        (g,), (x, weight), q = grad_outputs, ctx.saved_tensors, ctx.quantiser
        given: dict[Kind, torch.Tensor] = {"x": x, "weight": weight, "grad_output": g}

        def operand(kind: Kind, along: Along) -> torch.Tensor:
            if q.override == "none":
                return q.through(given[kind], kind, ctx.expert, along)  # type: ignore[no-any-return]
            if q.override == "dequantized" and kind != "grad_output":  # as the forward had it
                return q.through(given[kind], kind, ctx.expert, "rows")  # type: ignore[no-any-return]
            return given[kind].float()

        dgrad = wgrad = bgrad = None
        if ctx.needs_input_grad[0]:
            dgrad = (operand("grad_output", "rows") @ operand("weight", "columns")).to(x.dtype)
        if ctx.needs_input_grad[1]:
            wgrad = (operand("grad_output", "columns").T @ operand("x", "columns")).to(x.dtype)
        if ctx.bias and ctx.needs_input_grad[2]:
            bgrad = g.float().sum(0).to(x.dtype)
        return dgrad, wgrad, bgrad, None, None
