"""What is in a buffer? Its elements, expert by expert, or why there are none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from gradcheck_cli.records.observation import Buffer, Role

# Whose elements are measured; of others, and of sparse or meta tensors, shape and dtype tell enough.
READABLE = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Held:
    """One expert's part of a buffer: rows (T_i, N or K) of fprop and dgrad, (N, K) of wgrad, (N,) of bgrad.

    `tensor` is None where there is no buffer, or one that cannot be cut into the experts' parts. `shape` and `dtype`
    are those of the whole buffer as the candidate left it.
    """

    tensor: torch.Tensor | None = None
    present: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    added_flag: bool | None = None
    replaced: bool = False
    hooks: int | None = None


@dataclass(frozen=True)
class Found:
    """One role in one buffer after one phase, expert by expert.

    `before` is what a buffer must hold bit for bit, (G, N, K): what it held before the phase, or, of a weight, what a
    step makes of what `stood` there.
    """

    role: Role
    buffer: Buffer
    experts: list[Held]
    before: torch.Tensor | None = None
    stood: torch.Tensor | None = None


def truth(flag: object) -> bool | None:
    """A flag as a wrapper reads it: `if param.grad_added_to_main_grad`; None where there is none."""
    return None if flag is None else bool(flag)


def read(
    tensor: object,
    device: torch.device,
    *,
    added_flag: bool | None = None,
    replaced: bool = False,
    hooks: int | None = None,
) -> Held:
    """A whole buffer as it is, its elements only where they can be read like any other's."""
    if not isinstance(tensor, torch.Tensor):
        return Held(added_flag=added_flag, replaced=replaced, hooks=hooks)
    said = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        said += f" ({tensor.layout})".replace("torch.", "")
    if tensor.device.type != device.type:
        said += f" on {tensor.device}"
    return Held(
        tensor=tensor.detach() if said in READABLE else None,
        present=True,
        shape=tuple(tensor.shape),
        dtype=said,
        added_flag=added_flag,
        replaced=replaced,
        hooks=hooks,
    )


def snapshot(found: Found) -> Found:
    """The same with its elements copied, since buffers live on."""
    copies = [None if one.tensor is None else one.tensor.clone() for one in found.experts]
    return replace(found, experts=[replace(one, tensor=copy) for one, copy in zip(found.experts, copies, strict=True)])


def per_expert(buffers: list[Held], experts: int, part: tuple[int, ...]) -> list[Held]:
    """One packed (G, ...) buffer, or one for each expert, as one for each expert."""
    whole = buffers[0]
    if len(buffers) == experts and whole.shape != (1, *part):
        return [one if one.shape == part else replace(one, tensor=None) for one in buffers]
    fits = whole.tensor is not None and whole.shape == (experts, *part)
    parts = list(whole.tensor) if whole.tensor is not None and fits else [None] * experts
    return [replace(whole, tensor=tensor) for tensor in parts]


def by_rows(
    role: Role,
    buffer: Buffer,
    tensor: torch.Tensor | None,
    splits: tuple[int, ...],
    shape: tuple[int, ...],
    device: torch.device,
) -> Found:
    """The rows of each expert of an output or an input's gradient of the given shape; a tail is nobody's."""
    whole = read(tensor, device)
    fits = whole.tensor is not None and whole.shape == shape
    own = whole.tensor[: sum(splits)] if whole.tensor is not None and fits else None
    parts = (
        list(own.reshape(len(own), math.prod(shape[1:])).split(list(splits)))
        if own is not None
        else [None] * len(splits)
    )
    return Found(role, buffer, [replace(whole, tensor=tensor) for tensor in parts])
