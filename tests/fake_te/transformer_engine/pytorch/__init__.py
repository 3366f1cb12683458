"""The stand-in's PyTorch interface."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

from transformer_engine.pytorch import ops
from transformer_engine.pytorch.module import GroupedLinear
from transformer_engine.pytorch.quantization import autocast, quantized_model_init

__all__ = ["GroupedLinear", "autocast", "checkpoint", "ops", "quantized_model_init"]


def checkpoint(function: Any, *given: Any) -> Any:
    """A reentrant one, as it is by default."""
    return torch.utils.checkpoint.checkpoint(function, *given, use_reentrant=True)
