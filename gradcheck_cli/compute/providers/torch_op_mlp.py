"""How does plain torch do a chain? Two grouped linear layers as `torch_loop.py` has them, `F.silu` between them."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.providers.chain_parameters import ChainParameters
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.roles import layers


class ChainLayer(ChainParameters):
    """fc2(silu(a) b s), where [a, b] = fc1(x) and s are the probabilities."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(*(LoopLayer(layer, device) for layer in layers(case)))

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, K)."""
        gates, units = self.fc1.forward(x, m_splits).chunk(2, dim=-1)
        scaled = torch.nn.functional.silu(gates) * units * self.probs.unsqueeze(-1)
        return self.fc2.forward(scaled, m_splits)


def build(case: Case, device: torch.device) -> ChainLayer:
    """The chain of a case with api=op_mlp."""
    return ChainLayer(case, device)
