"""Did the candidate leave alone what it was only lent? Its inputs, and the memory around them, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from gradcheck_cli.compute.inputs import Inputs

# About 0.75 in every dtype: neither a write nor an addition leaves it as it is, and a sum that reads it is no integer.
GUARD_BYTE = 0x3F
GUARD = 4096  # bytes on either side: some rows of a small matrix, and a multiple of ALIGNED
ALIGNED = 512  # bytes: what CUDA's caching allocator gives, and kernels choose their way by
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Pairs = list[tuple[str, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Guarded:
    """A copy of a tensor in the middle of a larger storage, `around` it in bytes, from `start` to `end`."""

    name: str
    tensor: torch.Tensor
    around: torch.Tensor
    start: int
    end: int

    def pairs(self) -> Pairs:
        """Both guards, as they are and as they were laid."""
        laid = _guard(self.around.device)
        before, after = self.around[self.start - GUARD : self.start], self.around[self.end : self.end + GUARD]
        return [(f"guard before {self.name}", before, laid), (f"guard after {self.name}", after, laid)]


def guarded(name: str, values: torch.Tensor) -> Guarded:
    """A contiguous copy that begins at a multiple of ALIGNED; a tensor of its own, and no view."""
    size = values.numel() * values.element_size()
    around = torch.empty(size + 2 * GUARD + ALIGNED, dtype=torch.uint8, device=values.device)
    start = GUARD + -around.data_ptr() % ALIGNED
    # Counted from the storage's own beginning, which is the tensor's.
    tensor = torch.empty(0, dtype=values.dtype, device=values.device)
    tensor.set_(around.untyped_storage(), start // values.element_size(), values.shape, values.contiguous().stride())
    tensor.copy_(values)
    around[:start] = GUARD_BYTE
    around[start + size :] = GUARD_BYTE
    return Guarded(name, tensor, around, start, start + size)


def changed(pairs: Pairs) -> list[str]:
    """The names of those pairs that are not the same, bit for bit; in one transfer from the device."""
    differ = torch.stack([_differ(now, given) for _, now, given in pairs]).tolist()
    return [name for (name, _, _), one in zip(pairs, differ, strict=True) if one]


def lent(
    inputs: Inputs, k: int, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], guards: list[Guarded]
) -> Pairs:
    """All that a candidate may read in microbatch k and must not write, beside what it held before."""
    given = {"x": inputs.x[k], "grad_output": inputs.grad_output[k]}
    tensors = [(one.name, one.tensor.detach(), given[one.name]) for one in guards if one.name in given]
    loaded = [] if inputs.bias is None else _loaded("bias", biases, inputs.bias)
    around = [pair for one in guards for pair in one.pairs()]
    return [*tensors, *_loaded("weight", weights, inputs.weight), *loaded, *around]


def _loaded(name: str, held: Sequence[torch.Tensor], given: torch.Tensor) -> Pairs:
    """Parameters as they are beside what was loaded into them, expert by expert; one packed parameter, or G."""
    parts = [_plain(one) for one in held]
    if len(parts) == 1 and parts[0].numel() == given.numel():
        parts = list(parts[0].reshape(given.shape))
    return [(f"{name}[{i}]", part, own) for i, (part, own) in enumerate(zip(parts, given, strict=True))]


def _plain(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's own elements; Transformer Engine's GroupedTensor has them in one flat buffer."""
    flat = getattr(parameter, "rowwise_data", None)
    return (flat if isinstance(flat, torch.Tensor) else parameter).detach()


def _differ(now: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Whether any bit differs, as a tensor: by the integers of the elements' size, since NaN is not equal to NaN."""
    alike = (now.shape, now.dtype, now.device, now.layout) == (given.shape, given.dtype, given.device, given.layout)
    if not alike or _given_away(now):
        return torch.ones((), dtype=torch.bool, device=given.device)
    words = WORDS[given.element_size()]
    return (now.contiguous().view(words) != given.contiguous().view(words)).any()


def _given_away(tensor: torch.Tensor) -> bool:
    """Whether the storage has become too small for it, which frees the memory: reading it would crash."""
    furthest = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + furthest + 1) * tensor.element_size()
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < end


@lru_cache(maxsize=4)
def _guard(device: torch.device) -> torch.Tensor:
    return torch.full((GUARD,), GUARD_BYTE, dtype=torch.uint8, device=device)
