"""The stand-in's PyTorch interface."""

from __future__ import annotations

from transformer_engine.pytorch import ops
from transformer_engine.pytorch.module import GroupedLinear
from transformer_engine.pytorch.quantization import autocast, quantized_model_init

__all__ = ["GroupedLinear", "autocast", "ops", "quantized_model_init"]
