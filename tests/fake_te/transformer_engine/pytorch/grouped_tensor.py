"""What is a packed parameter? One (G, N, K) tensor over one flat buffer, which refuses to be cut or reshaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from transformer_engine.pytorch.quantization import FAULT, STATE, kept, matrix

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


class GroupedFloat8Tensor(torch.Tensor):
    """The packed weight that is kept quantised: a wrapper; its members' bytes lie in `rowwise_data`, one flat buffer.

    `quantized_tensors` is None where nobody has split it yet.
    """

    rowwise_data: torch.Tensor
    quantized_tensors: list[Any] | None
    _members: list[Any]

    @staticmethod
    def __new__(cls: Any, members: list[Any], rowwise_data: torch.Tensor) -> Any:
        """Over members (N, K) whose bytes follow each other in rowwise_data."""
        shape = (len(members), *members[0].shape)
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=members[0].dtype, device=rowwise_data.device)
        made.rowwise_data, made.quantized_tensors, made._members = rowwise_data, None, members
        return made

    def split_into_quantized_tensors(self) -> list[Any]:
        """Its members."""
        return self._members

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return GroupedFloat8Tensor(args[0]._members, args[0].rowwise_data)
        raise RuntimeError(f"GroupedTensor forbids shape-manipulation op: {func}")


def packed(experts: int, rows: int, columns: int, dtype: torch.dtype, device: Any) -> Any:
    """A packed parameter of zeros."""
    if STATE.kept:
        flat = torch.zeros(experts * rows * columns, dtype=torch.uint8, device=device)
        return torch.nn.Parameter(
            GroupedFloat8Tensor([kept(data, dtype) for data in flat.view(experts, rows, columns)], flat)
        )
    data = torch.zeros(experts, rows, columns, dtype=dtype, device=device)
    parameter: Any = torch.nn.Parameter(data.as_subclass(GroupedTensor))
    placed_in(parameter, data.clone() if FAULT == "storage apart" else data)
    return parameter


def placed_in(parameter: Any, data: torch.Tensor) -> None:
    """Have the elements of a packed parameter in this memory (G, N, K)."""
    parameter.rowwise_data = data.view(-1)
    parameter.quantized_tensors = list(data)


class Layer(torch.nn.Module):
    """What the module and the op have in common: what becomes of their weights when they are moved."""

    def _apply(self, *given: Any, **named: Any) -> Any:
        super()._apply(*given, **named)  # type: ignore[no-untyped-call]
        for parameter in self.parameters():
            if isinstance(parameter, GroupedTensor):
                placed_in(parameter, parameter.data.as_subclass(torch.Tensor))
            parameter.requires_grad &= FAULT != "frozen when moved"
        return self

    def _multiplied(self, members: list[Any]) -> list[torch.Tensor]:
        """The weights of a forward: those of the first, where they are cached and nobody asks whether they moved."""
        if FAULT != "weight cached":
            return [matrix(member) for member in members]
        if not hasattr(self, "_cached"):
            self._cached = [matrix(member).clone() for member in members]
        return self._cached


def split(parameter: Any) -> list[Any]:
    """The members of a packed parameter."""
    members: list[Any] = parameter.quantized_tensors or parameter.split_into_quantized_tensors()
    return members


def one_weight(rows: int, columns: int, dtype: torch.dtype, device: Any) -> torch.nn.Parameter:
    """The parameter of one expert, of zeros."""
    if STATE.kept:
        return torch.nn.Parameter(kept(torch.zeros(rows, columns, dtype=torch.uint8, device=device), dtype))
    return torch.nn.Parameter(torch.zeros(rows, columns, dtype=dtype, device=device))
