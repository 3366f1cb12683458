"""How does Transformer Engine's module do it? `transformer_engine.pytorch.GroupedLinear`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformer_engine.pytorch as te

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers.te_parameters import TEParameters
from gradcheck_cli.compute.providers.te_recipe import Quantised
from gradcheck_cli.compute.providers.te_taken import path_taken
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import built_dtype, is_first

# The only switch of the native path in 2.17 and 2.18, read at every forward; from 2.19 on an argument instead.
SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"


ARGUMENTS = ("return_bias", "save_original_input")


class ModuleLayer(TEParameters):
    """te.GroupedLinear, told only what the case says: by signature, for 2.14 to 2.20."""

    def __init__(self, case: Case, device: torch.device) -> None:
        accepted = inspect.signature(te.GroupedLinear.__init__).parameters
        options: dict[str, Any] = {}
        for name in ("single_grouped_weight", "single_grouped_bias", "delay_wgrad_compute", *ARGUMENTS):
            if getattr(case, name):
                options[name] = True
        if case.path != "auto" and "use_grouped_tensor" in accepted:
            options["use_grouped_tensor"] = case.path == "native"
        self._switch = None if case.path == "auto" or "use_grouped_tensor" in accepted else case.path == "native"
        quantised = Quantised(case)
        with quantised.building():
            module = te.GroupedLinear(
                num_gemms=case.num_gemms,
                in_features=case.in_features,
                out_features=case.out_features,
                bias=case.bias,
                params_dtype=DTYPES[built_dtype(case)],
                device=device,
                fuse_wgrad_accumulation=case.fuse_wgrad_accumulation,
                **options,
            )
        super().__init__(module, case.num_gemms, quantised)
        self._path: str | None = None
        self._case, self._calls = case, 0

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        # 2.19+ takes splits from the host on the legacy path only, and CUDA int64 splits on the native one; a capture
        # does not copy those of the host.
        captured = self._case.cuda_graph != "none" and self._case.path == "native"
        native = getattr(self.layer, "use_grouped_tensor", False) or captured
        how = self._case.m_splits_as if self._case.m_splits_as != "auto" else "device" if native else "list"
        splits: Any = self.given_splits(how, m_splits, x.device)
        with _variable(SWITCH, value=self._switch), self.quantised.context():
            returned = self.layer(x, splits, is_first_microbatch=is_first(self._case, self._calls))
        # What is run without a graph is no microbatch, or one that is yet to be run again.
        self._calls += torch.is_grad_enabled()
        y: torch.Tensor = with_its_bias(returned, m_splits) if self._case.return_bias else returned
        self._path = path_taken(y) or self._path
        self.quantised.look(y)
        return y

    def effective(self) -> dict[str, str | int]:
        """Layout, fusion, and the path and recipe of the last forward."""
        ran: dict[str, str | int] = {"path": self._path} if self._path else {}
        fused = int(self.layer.fuse_wgrad_accumulation)
        return {**self.layout(), "fuse_wgrad_accumulation": fused, **ran, **self.quantised.effective()}


def with_its_bias(returned: Any, m_splits: tuple[int, ...]) -> torch.Tensor:
    """What a trainer makes of `return_bias`: the product (T, N) plus the biases, G times (N,) or (G, N)."""
    product, biases = returned
    rest = len(product) - sum(m_splits)
    parts = product.split([*m_splits, rest])
    added = [rows + bias.to(rows.dtype) for rows, bias in zip(parts, biases, strict=False)]
    return torch.cat([*added, parts[-1]])


@contextmanager
def _variable(name: str, *, value: bool | None) -> Iterator[None]:
    """Set an environment variable to 0 or 1 for a while; None leaves it as it is."""
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = str(int(value))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def build(case: Case, device: torch.device) -> ModuleLayer:
    """The layer of a case with api=module."""
    return ModuleLayer(case, device)
