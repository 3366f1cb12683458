"""What do the torch candidates share? Parameters, and a main_grad written by a post-accumulate hook."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import built_dtype, is_first


class TorchLayer(torch.nn.Module):
    """Parameters of a grouped linear layer, packed or one per expert; a subclass adds `multiply`."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        experts, rows, columns = case.num_gemms, case.out_features, case.in_features
        self.experts, dtype = experts, DTYPES[built_dtype(case)]
        shapes: list[tuple[int, ...]] = [(rows, columns)] * experts
        if case.single_grouped_weight:
            shapes = [(experts, rows, columns)]

        def parameters(sizes: list[tuple[int, ...]]) -> torch.nn.ParameterList:
            return torch.nn.ParameterList(torch.empty(size, dtype=dtype, device=device) for size in sizes)

        self._weights = parameters(shapes)
        biases: list[tuple[int, ...]] = [(experts, rows)] if case.single_grouped_bias else [(rows,)] * experts
        self._biases = parameters(biases if case.bias else [])
        self.fused, self.delayed = case.fuse_wgrad_accumulation, case.delay_wgrad_compute
        self._case, self._calls = case, 0
        self._stand_ins: deque[list[torch.Tensor]] = deque()
        if self.fused:
            for weight in self._weights:
                weight.register_post_accumulate_grad_hook(self._accumulated)

    def used(self) -> list[torch.Tensor]:
        """The weights of the next forward; with `delay_wgrad_compute` stand-ins, whose gradients backward_dw takes.

        What is run without a graph is no microbatch, or one that is yet to be run again.
        """
        if torch.is_grad_enabled():
            self._calls += 1
        if not self.delayed or not torch.is_grad_enabled():
            return list(self._weights)
        self._stand_ins.append([one.detach().requires_grad_(one.requires_grad) for one in self._weights])
        return self._stand_ins[-1]

    @torch.no_grad()
    def backward_dw(self) -> None:
        """Add the gradients of the earliest forward that waits to the weights', as its backward left them."""
        for weight, stand_in in zip(self._weights, self._stand_ins.popleft(), strict=True):
            if stand_in.grad is None:
                continue
            weight.grad = stand_in.grad if weight.grad is None else weight.grad + stand_in.grad
            if self.fused:
                self._accumulated(weight)

    def _accumulated(self, weight: torch.Tensor) -> None:
        # As `is_first_microbatch` has it: the wgrad of such a microbatch replaces what is there.
        add_to_main_grad(weight, overwrite=is_first(self._case, self._calls - 1) is True)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, N, K), or G parameters (N, K)."""
        return list(self._weights)

    @property
    def biases(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, N), or G parameters (N,), or none."""
        return list(self._biases)

    def bias_of_each(self) -> list[torch.Tensor]:
        """G times (N,), or nothing."""
        packed = self._case.single_grouped_bias
        return list(self._biases[0].unbind()) if packed else list(self._biases)

    def finished(self, y: torch.Tensor, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """The product of all rows with the biases, and below it as many rows as x has past sum(m_splits), all zero.

        Per expert: autograd then sums each bias gradient in one reduction; repeat_interleave would accumulate it row
        by row in the activation dtype.
        """
        biases = self.bias_of_each()
        rows = y[: sum(m_splits)].split(list(m_splits))
        added = torch.cat([part + bias for part, bias in zip(rows, biases, strict=True)]) if biases else torch.cat(rows)
        return torch.nn.functional.pad(added, (0, 0, 0, len(x) - sum(m_splits)))

    @property
    def packed(self) -> bool:
        """Whether there is a single (G, N, K) parameter."""
        return len(self._weights[0].shape) == 3

    @torch.no_grad()
    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N) into the parameters."""
        for parameter, value in zip(self._weights, [weight] if self.packed else weight, strict=True):
            parameter.copy_(value)
        values = [] if bias is None else [bias] if len(self._biases) == 1 and self._biases[0].dim() == 2 else bias
        for parameter, value in zip(self._biases, values, strict=True):
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
def add_to_main_grad(parameter: torch.Tensor, *, overwrite: bool = False) -> None:
    """What a Megatron-style data-parallel wrapper does once `.grad` is complete.

    The wgrad has been rounded to the activation dtype by then; megatron-core,
    core/distributed/distributed_data_parallel.py, `_make_backward_post_hook`. `overwrite_main_grad` of the parameter
    replaces what was there, as a fused GEMM does.
    """
    if parameter.grad is None:
        return
    main_grad: torch.Tensor = parameter.main_grad  # type: ignore[attr-defined]
    if overwrite or getattr(parameter, "overwrite_main_grad", False):
        main_grad.copy_(parameter.grad)
    else:
        main_grad.add_(parameter.grad)
    if hasattr(parameter, "grad_added_to_main_grad"):
        parameter.grad_added_to_main_grad = True
    parameter.grad = None
