"""Did the candidate leave alone what it was only lent? Its inputs, and the memory around them, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from gradcheck_cli.compute.overlap import overlapping
from gradcheck_cli.compute.poison import POISON
from gradcheck_cli.compute.stored import buffer, elements, is_quantised
from gradcheck_cli.records.observation import POISON_BYTES, Fill

# About 0.75 in every dtype, of which a sum that reads it shows the traces: beside random data, which has no poison.
GUARD_BYTE = 0x3F
# Beside what is added to: about 2^-125 in fp32, so that whatever is added there leaves its bits. NaN would stay NaN.
ADDED_TO_BYTE = 0x01
GUARD = 4096  # bytes on either side, at least: some rows of a small matrix, and a multiple of ALIGNED
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
    byte: int

    def pairs(self) -> Pairs:
        """All before and all after the tensor, as it is and as it was laid."""
        laid = _guard(self.around.device, self.byte)
        before, after = self.around[: self.start], self.around[self.end :]
        return [
            (f"guard before {self.name}", before, laid[: len(before)]),
            (f"guard after {self.name}", after, laid[: len(after)]),
        ]


def guarded(name: str, values: torch.Tensor, byte: int = GUARD_BYTE, off: int = 0) -> Guarded:
    """A contiguous copy that begins so many elements past a multiple of ALIGNED; a tensor of its own, and no view."""
    size = values.numel() * values.element_size()
    around = torch.empty(size + 2 * GUARD + ALIGNED, dtype=torch.uint8, device=values.device)
    start = GUARD + -around.data_ptr() % ALIGNED + off * values.element_size()
    # Counted from the storage's own beginning, which is the tensor's.
    tensor = torch.empty(0, dtype=values.dtype, device=values.device)
    tensor.set_(around.untyped_storage(), start // values.element_size(), values.shape, values.contiguous().stride())
    tensor.copy_(values)
    around[:start] = byte
    around[start + size :] = byte
    return Guarded(name, tensor, around, start, start + size, byte)


def guard_byte(fill: Fill) -> int:
    """What lies around that which is only to be read: the poison, so that even zero times what lies there is seen."""
    return POISON_BYTES.get(POISON[fill], GUARD_BYTE)


@dataclass(frozen=True)
class Placed:
    """A tensor, and where its elements lay when it was lent: it can be given other memory, or other strides, in place.

    `laid` is its shape, its strides, and where in its storage it begins.
    """

    name: str
    tensor: torch.Tensor
    at: int
    laid: tuple[object, ...]

    def replaced_in(self, weight: torch.Tensor) -> bool:
        """Whether the weight's main_grad is in other memory by now; another view of the same is as good."""
        found = getattr(weight, "main_grad", None)
        if not isinstance(found, torch.Tensor) or found.layout is not torch.strided:
            return True
        if found.dtype is not self.tensor.dtype:
            return True
        now = placed(self.name, found)
        return now.at != self.at or (found is not self.tensor and now.laid != self.laid)

    def moved(self) -> str:
        """What is no longer as it was; "" where all is."""
        now = placed(self.name, self.tensor)
        if now.at != self.at:
            return f"memory of {self.name}"
        return f"layout of {self.name}" if now.laid != self.laid else ""


def placed(name: str, tensor: torch.Tensor) -> Placed:
    """A tensor where it lies now."""
    plain = buffer(tensor)
    return Placed(name, tensor, plain.data_ptr(), (*plain.shape, *plain.stride(), plain.storage_offset()))


class Loaded(NamedTuple):
    """The parameters of one kind, one packed or one for each expert, and what must stay in them."""

    name: str
    held: Sequence[Placed]
    given: torch.Tensor


def loaded(name: str, held: Sequence[Placed], values: torch.Tensor) -> Loaded:
    """Parameters as they were loaded with values, expert by expert; of quantised ones that which is left of these."""
    if not any(is_quantised(one.tensor) for one in held):
        return Loaded(name, held, values)
    return Loaded(name, held, torch.stack([elements(one.tensor) for one in held]).reshape(values.shape))


class Seen(NamedTuple):
    """What is lent, after some phase: the elements beside those that were given, and the names of what else changed."""

    pairs: Pairs
    names: list[str]


@dataclass
class Loans:
    """All that a candidate was lent so far; what is changed is told once, when it is first seen."""

    loaded: list[Loaded]
    main_grads: list[Placed]
    around: list[Guarded]  # the buffers that the main_grads are views of
    due: list[Placed]  # parameters whose gradient belongs into .grad; elsewhere it is a dummy, and nobody's business
    parameters: Callable[[], list[torch.Tensor]]  # those that the layer has by now
    frozen: set[str] = field(default_factory=set)  # names of parameters without requires_grad
    settings: list[str] = field(default_factory=list)  # of the process, left otherwise so far
    given: list[tuple[Guarded, torch.Tensor]] = field(default_factory=list)
    dgrads: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)  # of whom, and as it was
    outputs: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)  # whose backward is to come
    handed: list[Placed] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def lend(self, one: Guarded, values: torch.Tensor, handle: torch.Tensor, k: int) -> None:
        """Add x or grad_output of a microbatch: what was copied, and the very tensor that is handed out."""
        name = f"{one.name}{_of(k)}"
        self.given.append((replace(one, name=name), values))
        self.handed += [placed(name, one.tensor), placed(name, handle)]

    def rewrite(self, name: str, values: torch.Tensor) -> None:
        """Expect these values in the parameters of that name from here on: weights (G, N, K), or biases (G, N)."""
        self.loaded = [one._replace(given=values) if one.name == name else one for one in self.loaded]

    def keep(self, x: torch.Tensor, k: int) -> None:
        """Add the dgrad of a microbatch that is over: from here on it is its owner's."""
        if x.grad is not None:
            self.dgrads.append((f"dgrad{_of(k)}", x, x.grad.clone()))

    def expect(self, y: torch.Tensor, k: int) -> None:
        """Add the output of a microbatch, which stays as it is until its backward begins."""
        self.outputs.append((f"output{_of(k)}", y.detach(), y.detach().clone()))

    def release(self, step: tuple[int, ...]) -> None:
        """Expect nothing any more of the outputs of these microbatches, whose backward begins."""
        own = {f"output{_of(k)}" for k in step}
        self.outputs = [one for one in self.outputs if one[0] not in own]

    def seen(self, beside: Seen | None = None) -> Seen:
        """Everything as it is now, and what was seen beside it."""
        parameters = [one for group in self.loaded for one in group.held]
        pairs = [(one.name, one.tensor.detach(), values) for one, values in self.given]
        pairs += [pair for group in self.loaded for pair in _loaded(group)]
        pairs += [(name, _grad(x), before) for name, x, before in self.dgrads]
        pairs += self.outputs
        pairs += [pair for one in (*self.around, *(one for one, _ in self.given)) for pair in one.pairs()]
        names = [one.moved() for one in (*parameters, *self.handed)]
        # Other memory is told where main_grad itself is looked at, as another tensor is.
        names += [moved for moved in (one.moved() for one in self.main_grads) if moved.startswith("layout")]
        names += [
            f"requires_grad of {one.name}"
            for one in parameters
            if one.tensor.requires_grad is (one.name in self.frozen)
        ]
        names += [
            f"identity of {before.name}"
            for before, now in zip(parameters, self.parameters(), strict=False)
            if now is not before.tensor
        ]
        names += [f"setting of {name}" for name in self.settings]
        owed = [(one.name, one.tensor) for one in self.due] + [(one.name, one.tensor) for one, _ in self.given]
        names += [f"overlap in the grad of {name}" for name in overlapping({n: t.grad for n, t in owed})]
        pairs, names = pairs + (beside.pairs if beside else []), names + (beside.names if beside else [])
        return Seen(pairs, [name for name in names if name])

    def changed(self, seen: Seen, k: int) -> list[str]:
        """The names of all that is changed and was not told before; of this microbatch's own x it says only `x`."""
        names = [*changed(seen.pairs), *seen.names]
        new = [name for name in dict.fromkeys(names) if name not in self.told]
        self.told.update(new)
        return [name.removesuffix(_of(k)) for name in new]


def changed(pairs: Pairs) -> list[str]:
    """The names of those pairs that are not the same, bit for bit; in one transfer from the device."""
    differ = torch.stack([_differ(now, given) for _, now, given in pairs]).tolist()
    return [name for (name, _, _), one in zip(pairs, differ, strict=True) if one]


def _of(microbatch: int) -> str:
    return f" of microbatch {microbatch}"


def _loaded(group: Loaded) -> Pairs:
    """Parameters as they are beside what was loaded into them, expert by expert; one packed parameter, or G."""
    name, held, given = group
    parts = [elements(one.tensor) for one in held]
    if len(parts) == 1:  # of another size by now: no expert's part is what it was
        fits = parts[0].numel() == given.numel()
        parts = list(parts[0].reshape(given.shape)) if fits else parts * len(given)
    # Where it is no longer in the dtype that it was loaded in, that is what is told.
    pairs = enumerate(zip(parts, given, strict=True))
    return [(f"{'dtype of ' * (part.dtype != own.dtype)}{name}[{i}]", part, own) for i, (part, own) in pairs]


def _grad(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0) if x.grad is None else x.grad


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


@lru_cache(maxsize=16)
def _guard(device: torch.device, byte: int) -> torch.Tensor:
    return torch.full((GUARD + ALIGNED,), byte, dtype=torch.uint8, device=device)
