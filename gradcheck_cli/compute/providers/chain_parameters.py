"""Where are the parameters of a chain of two layers, and what is it, as its layers tell?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradcheck_cli.compute.provider import Layer


class ChainParameters:
    """fc1, an activation scaled by probabilities, fc2: what any provider's chain has of its two layers."""

    def __init__(self, fc1: Layer, fc2: Layer) -> None:
        self.fc1, self.fc2 = fc1, fc2
        self.probs = torch.empty(0)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, 2 N, K) of fc1, or G parameters (2 N, K)."""
        return self.fc1.weights

    @property
    def weights_fc2(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, K, N) of fc2, or G parameters (K, N)."""
        return self.fc2.weights

    @property
    def biases(self) -> Sequence[torch.Tensor]:
        """Of both layers; none, as long as a case of a chain has none."""
        return [*self.fc1.biases, *self.fc2.biases]

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, 2 N, K) into the parameters of fc1."""
        self.fc1.load(weight, bias)

    def load_fc2(self, weight: torch.Tensor) -> None:
        """Copy weight (G, K, N) into the parameters of fc2."""
        self.fc2.load(weight, None)

    def scale_by(self, probs: torch.Tensor) -> None:
        """Keep the probabilities (T,) of the next forward's tokens."""
        self.probs = probs

    def effective(self) -> dict[str, str | int]:
        """What both layers are; where they differ, what either is."""
        one, other = self.fc1.effective(), self.fc2.effective()
        return {name: one[name] if one[name] == other[name] else f"{one[name]} and {other[name]}" for name in one}
