"""What do the torch candidates share? Parameters, and a main_grad written by a post-accumulate hook."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.case import Case


class TorchLayer(torch.nn.Module):
    """Parameters of a grouped linear layer, packed or one per expert; a subclass adds `multiply`."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        experts, rows, columns = case.num_gemms, case.out_features, case.in_features
        self.experts = experts
        shapes: list[tuple[int, ...]] = [(rows, columns)] * experts
        if case.single_grouped_weight:
            shapes = [(experts, rows, columns)]

        def parameters(sizes: list[tuple[int, ...]]) -> torch.nn.ParameterList:
            return torch.nn.ParameterList(torch.empty(size, dtype=DTYPES[case.dtype], device=device) for size in sizes)

        self._weights = parameters(shapes)
        self._biases = parameters([(rows,)] * experts if case.bias else [])
        self.fused = case.fuse_wgrad_accumulation
        if self.fused:
            for weight in self._weights:
                weight.register_post_accumulate_grad_hook(add_to_main_grad)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, N, K), or G parameters (N, K)."""
        return list(self._weights)

    @property
    def biases(self) -> Sequence[torch.Tensor]:
        """G parameters (N,), or none."""
        return list(self._biases)

    @property
    def packed(self) -> bool:
        """Whether there is a single (G, N, K) parameter."""
        return len(self._weights[0].shape) == 3

    @torch.no_grad()
    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N) into the parameters."""
        for parameter, value in zip(self._weights, [weight] if self.packed else weight, strict=True):
            parameter.copy_(value)
        for parameter, value in zip(self._biases, [] if bias is None else bias, strict=True):
            parameter.copy_(value)

    def effective(self) -> dict[str, str | int]:
        """Layout and dtype, read from the parameters."""
        names = {dtype: name for name, dtype in DTYPES.items()}
        return {
            "single_grouped_weight": int(self.packed),
            "fuse_wgrad_accumulation": int(self.fused),
            "dtype": names[self._weights[0].dtype],
            "bias": int(len(self._biases) > 0),
            "num_gemms": self._weights[0].shape[0] if self.packed else len(self._weights),
        }


@torch.no_grad()
def add_to_main_grad(parameter: torch.Tensor) -> None:
    """What a Megatron-style data-parallel wrapper does once `.grad` is complete.

    The wgrad has been rounded to the activation dtype by then; megatron-core,
    core/distributed/distributed_data_parallel.py, `_make_backward_post_hook`.
    """
    if parameter.grad is None:
        return
    parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
    parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    parameter.grad = None
