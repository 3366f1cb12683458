"""How does a fault get between a layer and autograd? A gate passes another value on, and another gradient back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Back = Callable[[torch.Tensor], torch.Tensor | None]


class Gate(torch.autograd.Function):
    """The identity, or another value in its place; on the way back the gradient goes through `back`."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, passed: torch.Tensor, back: Back) -> torch.Tensor:
        """Keep what the gradient will go through."""
        ctx.back = back
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        """The altered gradient, or none."""
        return ctx.back(grads[0].clone()), None, None


def gate(value: torch.Tensor, back: Back, passed: torch.Tensor | None = None) -> torch.Tensor:
    """The value, or what is passed in its place, whose gradient goes through `back`."""
    given: torch.Tensor = Gate.apply(value, value.detach() if passed is None else passed, back)  # type: ignore[no-untyped-call]
    return given
