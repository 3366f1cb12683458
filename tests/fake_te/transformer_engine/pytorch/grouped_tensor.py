"""What is a packed parameter? One (G, N, K) tensor over one flat buffer, which refuses to be cut or reshaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_FORBIDDEN = ("view", "reshape", "select", "split", "chunk", "unbind", "cat", "stack", "narrow", "__getitem__")


class GroupedTensor(torch.Tensor):
    """The packed weight; `rowwise_data` is its storage, `quantized_tensors` are detached views of its members."""

    rowwise_data: torch.Tensor
    quantized_tensors: list[torch.Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.__name__ in _FORBIDDEN:
            raise RuntimeError(f"GroupedTensor forbids shape-manipulation op {func.__name__}")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def packed(experts: int, rows: int, columns: int, dtype: torch.dtype, device: Any) -> Any:
    """A packed parameter of zeros."""
    data = torch.zeros(experts, rows, columns, dtype=dtype, device=device)
    parameter: Any = torch.nn.Parameter(data.as_subclass(GroupedTensor))
    parameter.rowwise_data = data.view(-1)
    parameter.quantized_tensors = list(data)
    return parameter
