"""How does a layer go wrong now and then? The torch loop, whose luck decides anew each time that it is built."""

from __future__ import annotations

import random

import torch

from gradcheck_cli.compute.faults.gates import gate
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.chances import CHANCES

# Of the process, so that a run in a fresh worker can be repeated.
LUCK = random.Random(6)  # noqa: S311  no secret


class ChanceLayer(LoopLayer):
    """A layer that is right unless its luck is bad."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.unlucky = LUCK.random() < CHANCES[case.api].rate


class OtherOrder(ChanceLayer):
    """The tokens of each expert go the other way round: its sums over tokens round otherwise, and are as right."""

    def product(
        self, expert: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x w^T (+ b) of one expert."""
        if not self.unlucky:
            return super().product(expert, x, weight, bias)
        return super().product(expert, x.flip(0), weight, bias).flip(0)


class LostUpdate(ChanceLayer):
    """The last element of a bias gradient keeps what one of two blocks has added, half of it."""

    def bias_of_each(self) -> list[torch.Tensor]:
        """G times (N,), or nothing."""
        biases = super().bias_of_each()
        return [gate(bias, self._raced) for bias in biases] if self.unlucky else biases

    def _raced(self, bgrad: torch.Tensor) -> torch.Tensor:
        bgrad[-1] /= 2
        return bgrad


# Names of `chances.CHANCES`.
CHANCE: dict[str, type[ChanceLayer]] = {"wgrad_other_order": OtherOrder, "bgrad_lost_update": LostUpdate}
