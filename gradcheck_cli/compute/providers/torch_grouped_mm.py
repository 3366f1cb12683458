"""How does torch's grouped GEMM do it? `torch.nn.functional.grouped_mm`, where this torch has it."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.providers.torch_layer import TorchLayer
from gradcheck_cli.records.case import Case


class GroupedMMLayer(TorchLayer):
    """One grouped_mm over all experts: x (T, K) with int32 offsets, weights as (G, K, N) views."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self._ends: dict[tuple[int, ...], torch.Tensor] = {}

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        used = self.used()
        weight = used[0] if self.packed else torch.stack(used)
        if m_splits not in self._ends:  # none can be made while a CUDA graph is captured
            self._ends[m_splits] = torch.tensor(m_splits, device=x.device).cumsum(0).to(torch.int32)
        ends = self._ends[m_splits]
        y: torch.Tensor = torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
        if not len(self._biases) and len(x) == sum(m_splits):
            return y
        return self.finished(y, x, m_splits)


def build(case: Case, device: torch.device) -> GroupedMMLayer:
    """The layer of a case with api=grouped_mm; NotImplementedError where this torch has none."""
    if not hasattr(torch.nn.functional, "grouped_mm"):
        raise NotImplementedError(f"torch.nn.functional.grouped_mm is not in torch {torch.__version__}")
    return GroupedMMLayer(case, device)
