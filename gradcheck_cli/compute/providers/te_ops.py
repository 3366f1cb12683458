"""How does Transformer Engine's op-fuser do it? `transformer_engine.pytorch.ops.GroupedLinear`."""

from __future__ import annotations

from typing import Any

import torch
import transformer_engine.pytorch.ops as te_ops

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers.te_parameters import TEParameters
from gradcheck_cli.compute.providers.te_recipe import Quantised
from gradcheck_cli.compute.providers.te_taken import path_taken
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import built_dtype


class OpLayer(TEParameters):
    """te.ops.GroupedLinear, told only what the case says; it chooses its path by itself."""

    def __init__(self, case: Case, device: torch.device) -> None:
        asked = ("single_grouped_weight", "single_grouped_bias", "delay_wgrad_compute")
        options: dict[str, Any] = {name: True for name in asked if getattr(case, name)}
        self._case, quantised = case, Quantised(case)
        with quantised.building():
            op = te_ops.GroupedLinear(
                case.num_gemms,
                case.in_features,
                case.out_features,
                bias=case.bias,
                device=device,
                dtype=DTYPES[built_dtype(case)],
                accumulate_into_main_grad=case.fuse_wgrad_accumulation,
                **options,
            )
        super().__init__(op, case.num_gemms, quantised)
        self._path: str | None = None

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        how = "device" if self._case.m_splits_as == "auto" else self._case.m_splits_as
        with self.quantised.context():
            y: torch.Tensor = self.layer(x, self.given_splits(how, m_splits, x.device))
        self._path = path_taken(y) or self._path
        self.quantised.look(y)
        return y

    def effective(self) -> dict[str, str | int]:
        """Layout, fusion, and the path and recipe of the last forward."""
        path: dict[str, str | int] = {"path": self._path} if self._path else {}
        fused = int(self.layer._accumulate_into_main_grad)  # noqa: SLF001  there is no public name for it
        return {**self.layout(), "fuse_wgrad_accumulation": fused, **path, **self.quantised.effective()}


def build(case: Case, device: torch.device) -> OpLayer:
    """The layer of a case with api=op."""
    return OpLayer(case, device)
