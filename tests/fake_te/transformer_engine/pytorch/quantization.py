"""What is quantised in the stand-in? Weights that are kept so, and operands as plain torch does it.

FAKE_TE_FAULT names what goes wrong with weights that are kept quantised, cached, packed or moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from gradcheck_cli.compute.providers.torch_quantised import E4M3, Quantiser, quotient
from gradcheck_cli.records.recipe import RECIPES
from transformer_engine.common.recipe import DelayedScaling, Recipe

FAULT = os.environ.get("FAKE_TE_FAULT", "")
STATE = SimpleNamespace(recipe=None, kept=None)  # of autocast, and of quantized_model_init
LARGEST = 448.0
aten = torch.ops.aten


class Float8Quantizer:
    """Of DelayedScaling."""


class Float8CurrentScalingQuantizer:
    """Of Float8CurrentScaling."""


@contextmanager
def autocast(enabled: bool = True, recipe: Recipe | None = None) -> Iterator[None]:  # noqa: FBT001, FBT002
    """Forwards are run under a recipe."""
    before, STATE.recipe = STATE.recipe, recipe if enabled else None
    try:
        yield
    finally:
        STATE.recipe = before


@contextmanager
def quantized_model_init(enabled: bool = True, recipe: Recipe | None = None) -> Iterator[None]:  # noqa: FBT001, FBT002
    """Weights that are made here are kept quantised."""
    before, STATE.kept = STATE.kept, recipe if enabled and FAULT != "kept in bf16" else None
    try:
        yield
    finally:
        STATE.kept = before


def notes(name: str) -> dict[str, Any]:
    """What an autograd node remembers of the recipe, under the name that a module or an op has for it."""
    recipe = STATE.recipe
    if recipe is None:
        return {name: False}
    quantiser = Float8Quantizer() if isinstance(recipe, DelayedScaling) else Float8CurrentScalingQuantizer()
    return {name: True, "input_quantizers": [quantiser], "backward_override": recipe.backward_override}


def quantiser_of(layer: Any) -> Quantiser | None:
    """The layer's own under the recipe in force, which remembers what it has seen; None under no recipe."""
    if STATE.recipe is None:
        return None
    if not hasattr(layer, "quantiser"):
        name: Any = type(STATE.recipe).__name__
        layer.quantiser = Quantiser(RECIPES[name], STATE.recipe.backward_override or "none")
    made: Quantiser = layer.quantiser
    return made


class Float8Tensor(torch.Tensor):
    """A matrix in E4M3: the bytes and the inverse of their scale; `dtype` is what it passes for."""

    _data: torch.Tensor
    _scale_inv: torch.Tensor
    _recipe: Recipe

    @staticmethod
    def __new__(cls: Any, data: torch.Tensor, scale_inv: torch.Tensor, dtype: torch.dtype, recipe: Recipe) -> Any:
        """A wrapper around the bytes (N, K): none of its own."""
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtype, device=data.device)
        made._data, made._scale_inv, made._recipe = data, scale_inv, recipe
        return made

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values, a copy."""
        return (self._data.view(torch.float8_e4m3fn).float() * self._scale_inv).to(dtype or self.dtype)

    def quantize_(self, values: torch.Tensor) -> None:
        """Quantise values in place."""
        amax = values.abs().max().float()
        scale = torch.ones(()) if isinstance(self._recipe, DelayedScaling) else quotient(amax, E4M3)
        scaled = (values.float() * scale).clamp(-LARGEST, LARGEST)
        self._data.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8))
        self._scale_inv.copy_(1 / scale)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is aten.detach.default:
            one = args[0]
            return Float8Tensor(one._data, one._scale_inv, one.dtype, one._recipe)
        if func is aten.copy_.default:
            args[0].quantize_(args[1])
            return args[0]
        raise NotImplementedError(f"Float8Tensor: {func}")


def kept(data: torch.Tensor, dtype: torch.dtype) -> Float8Tensor:
    """A weight of zeros over these bytes (N, K), kept as the recipe in force quantises it."""
    made: Float8Tensor = Float8Tensor(data, torch.ones(()), dtype, STATE.kept)
    return made


def matrix(weight: torch.Tensor) -> torch.Tensor:
    """What a GEMM multiplies."""
    return weight.dequantize() if isinstance(weight, Float8Tensor) else weight.detach()


def spoil(weight: Any) -> None:
    """What a faulty forward leaves of a weight that is kept quantised."""
    if FAULT == "weight changed":
        weight._data[0, 0] ^= 1
    if FAULT == "weight moved":
        weight._data = weight._data.clone()
