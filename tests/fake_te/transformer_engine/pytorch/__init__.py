"""The stand-in's PyTorch interface."""

from __future__ import annotations

from transformer_engine.pytorch import ops
from transformer_engine.pytorch.module import GroupedLinear

__all__ = ["GroupedLinear", "ops"]
