"""Which recipes does the stand-in know? Those whose scale is a whole tensor's."""

from __future__ import annotations


class Recipe:
    """How tensors are quantised, and what the backward multiplies."""

    def __init__(self, backward_override: str | None = None) -> None:
        self.backward_override = backward_override


class DelayedScaling(Recipe):
    """Scales follow what was seen before, and the first is 1."""


class Float8CurrentScaling(Recipe):
    """The scale of a tensor is the format's largest number by its own."""
