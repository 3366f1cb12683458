"""How does Transformer Engine's op-fuser do a chain? GroupedLinear, ScaledSwiGLU, GroupedLinear in one Sequential."""

from __future__ import annotations

import torch
import transformer_engine.pytorch.ops as te_ops

from gradcheck_cli.compute.providers.chain_parameters import ChainParameters
from gradcheck_cli.compute.providers.te_ops import OpLayer
from gradcheck_cli.compute.providers.te_parameters import splits_as
from gradcheck_cli.compute.providers.te_taken import path_taken
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.roles import layers


class ChainLayer(ChainParameters):
    """te.ops.Sequential of the three; each of its linear layers chooses its path by itself."""

    def __init__(self, case: Case, device: torch.device) -> None:
        fc1, fc2 = (OpLayer(layer, device) for layer in layers(case))
        super().__init__(fc1, fc2)
        self._chain = te_ops.Sequential(fc1.layer, te_ops.ScaledSwiGLU(), fc2.layer)
        self._how = "device" if case.m_splits_as == "auto" else case.m_splits_as
        self._path: str | None = None

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, K)."""
        # One tensor for both layers, as the fused kernels of later architectures ask for.
        splits = splits_as(self._how, m_splits, x.device)
        y: torch.Tensor = self._chain(x, splits, self.probs, splits)
        self._path = path_taken(y) or self._path
        return y

    def effective(self) -> dict[str, str | int]:
        """Layout and fusion of both layers, and the paths of the last forward."""
        path: dict[str, str | int] = {"path": self._path} if self._path else {}
        return {**super().effective(), **path}


def build(case: Case, device: torch.device) -> ChainLayer:
    """The chain of a case with api=op_mlp."""
    return ChainLayer(case, device)
