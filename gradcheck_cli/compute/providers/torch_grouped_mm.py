"""How does torch's grouped GEMM do it? `torch.nn.functional.grouped_mm`, where this torch has it."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.providers.torch_layer import TorchLayer
from gradcheck_cli.records.case import Case


class GroupedMMLayer(TorchLayer):
    """One grouped_mm over all experts: x (T, K) with int32 offsets, weights as (G, K, N) views."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        used = self.used()
        weight = used[0] if self.packed else torch.stack(used)
        ends = torch.tensor(m_splits, device=x.device).cumsum(0).to(torch.int32)
        y: torch.Tensor = torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
        if not len(self._biases):
            return y
        # Per expert: autograd then sums each bias gradient in one reduction; repeat_interleave would
        # accumulate it row by row in the activation dtype.
        return torch.cat([rows + bias for rows, bias in zip(y.split(list(m_splits)), self._biases, strict=True)])


def build(case: Case, device: torch.device) -> GroupedMMLayer:
    """The layer of a case with api=grouped_mm; NotImplementedError where this torch has none."""
    if not hasattr(torch.nn.functional, "grouped_mm"):
        raise NotImplementedError(f"torch.nn.functional.grouped_mm is not in torch {torch.__version__}")
    return GroupedMMLayer(case, device)
