"""How does plain torch do it? `torch.nn.functional.linear` on the rows of each expert in turn."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.providers.torch_layer import TorchLayer
from gradcheck_cli.records.case import Case


class LoopLayer(TorchLayer):
    """One F.linear per expert, experts without tokens included, so that each gets its zeros."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        used = self.used()
        weights = used[0].unbind() if self.packed else used
        rows = x[: sum(m_splits)].split(list(m_splits))
        if self._case.return_bias or self._case.padded_tail != "none":
            products = [torch.nn.functional.linear(r, w) for r, w in zip(rows, weights, strict=True)]
            return self.finished(torch.cat(products), x, m_splits)
        biases: list[torch.Tensor | None] = [*self.bias_of_each()] or [None] * self.experts
        return torch.cat([torch.nn.functional.linear(r, w, b) for r, w, b in zip(rows, weights, biases, strict=True)])


def build(case: Case, device: torch.device) -> LoopLayer:
    """The layer of a case with api=loop."""
    return LoopLayer(case, device)
