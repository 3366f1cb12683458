"""What lies in memory that nobody should read? A pattern that a layer would have to read, were it to read there.

CUDA's caching allocator and, for a stale earlier result, the C library's get free blocks that hold it. A pattern of one
byte glibc itself writes into every block that it gives out, for as long as the layer runs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from gradcheck_cli.compute.measure import relative
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import POISON_BYTES, Fill
from gradcheck_cli.records.roles import is_chain, part, weights_of

# Three runs of every case, three poisons. What is not a byte of POISON_BYTES is "stale": plausible values of the dtype.
POISON: dict[Fill, str] = {"exact": "0xFF", "range": "0x71", "normal": "stale"}

# The share of the words looked at that must hold the pattern, or nothing is claimed. Not all: an allocator writes words
# of its own into a free block, and may have a small one at hand that nobody could reach.
POISONED = 0.9
ATTEMPTS = 2  # what else is free decides what is found; the first attempt uses much of it up

# Blocks of each size that are left behind: a layer takes several of a size before it takes the one that it misreads.
COPIES = 3
# More of small ones, bytes: glibc sets the first seven that are freed of a size aside, and posix_memalign never looks.
SMALL_COPIES, SMALL = 10, 2048
MANY_UP_TO = 1 << 20  # bytes; of larger blocks one is left, which is what fits a budget of time
# One more block, of this size or the largest, for all that is cut from a large one: temporaries of the layer.
SLAB = 1 << 20
ALIGNED = 64  # bytes, as torch asks of posix_memalign

# glibc's malloc.h: a block is filled with the low byte of this parameter's complement; 0 turns that off, 256 does not.
M_PERTURB = -6

TILE = 512  # words of 8 bytes: the pattern repeats with the address, so that a block cut from any other is known
SMALL_POOL = 1 << 20  # bytes; CUDA's caching allocator serves requests up to this from segments of their own
SWEPT = 4 << 30  # bytes of cached CUDA blocks, smallest first, which are what fits best: filled in about 1 ms


def poison(pattern: str, case: Case, device: torch.device) -> bool:
    """Leave the pattern in memory of the case's sizes and around them; whether it is what `filled` then finds there.

    Without memory to spare it is not; then nothing is claimed.
    """
    try:
        words = tile(pattern, case.dtype, device)
        return any(_laid(pattern, words, sizes(case), device) for _ in range(ATTEMPTS))
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return False


@contextmanager
def filled(pattern: str, device: torch.device) -> Iterator[None]:
    """Run a layer: what it allocates meanwhile holds the pattern, where the C library can see to that."""
    mallopt = getattr(_libc(), "mallopt", None) if pattern in POISON_BYTES and device.type == "cpu" else None
    if mallopt is None:
        yield
        return
    mallopt(M_PERTURB, 256 | POISON_BYTES[pattern] ^ 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


@lru_cache(maxsize=64)
def sizes(case: Case) -> tuple[int, ...]:
    """Bytes of every result of a case, in its dtype and in fp32: where a layer puts them, a pattern shall lie."""
    n, k, experts = case.out_features, case.in_features, case.num_gemms
    elements = {n * k, experts * n * k, n, experts * n}
    if is_chain(case):  # of either layer, and what lies between them
        elements = {math.prod(part(case, role)) * many for role in weights_of(case) for many in (1, experts)}
        elements |= {sum(case.splits(step)) * wide for step in range(case.microbatches) for wide in (1, n, 2 * n)}
    for step in range(case.microbatches):
        elements |= {sum(case.splits(step)) * n, sum(case.splits(step)) * k}
    widths = {DTYPES[case.dtype].itemsize, 4}
    return tuple(sorted((count * width for count in elements for width in widths if count), reverse=True))


@lru_cache(maxsize=16)
def tile(pattern: str, dtype: str, device: torch.device) -> torch.Tensor:
    """The pattern twice, (2 * TILE,) int64, so that it can be read from any place on."""
    if pattern in POISON_BYTES:
        words = torch.full((8 * TILE,), POISON_BYTES[pattern], dtype=torch.uint8, device="cpu").view(torch.int64)
    else:
        generator = torch.Generator(device="cpu").manual_seed(0)
        count = 8 * TILE // DTYPES[dtype].itemsize
        values = torch.randn(count, generator=generator, dtype=torch.float32, device="cpu")
        words = values.to(DTYPES[dtype]).view(torch.int64)
    return words.repeat(2).to(device)


def _laid(pattern: str, words: torch.Tensor, wanted: tuple[int, ...], device: torch.device) -> bool:
    """Take blocks, fill them, give them back, and look whether those that torch then takes hold the pattern."""
    if device.type == "cuda":
        _in_the_cache(words, wanted, device)
    elif pattern not in POISON_BYTES:
        _on_the_heap(words, wanted)
    with filled(pattern, device):
        probes = [_taken(size, device) for size in wanted]
    held, seen = np.sum([_held(block, words) for block in probes], axis=0)
    return bool(held >= POISONED * seen)


def _on_the_heap(words: torch.Tensor, wanted: tuple[int, ...]) -> None:
    """By the C library's own functions: a tensor around each block would leave holes of its own, without poison.

    glibc takes the best fit, and cuts from the end of the heap only where there is none.
    """
    libc, source = _libc(), _source(words)
    many = [size for size in wanted if size <= MANY_UP_TO for _ in range(COPIES if size > SMALL else SMALL_COPIES)]
    every = (max(SLAB, *wanted), *(size for size in wanted if size > MANY_UP_TO), *many)
    taken = (ctypes.c_void_p * len(every))()
    start = ctypes.addressof(source)
    for place, size in enumerate(every):
        libc.posix_memalign(ctypes.byref(taken, place * ctypes.sizeof(ctypes.c_void_p)), ALIGNED, size)
        at = taken[place]
        if not at:
            break
        for done in range(0, size, SLAB):
            ctypes.memmove(at + done, start + (at + done) % (8 * TILE), min(SLAB, size - done))
    for at in taken:
        libc.free(at)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


@lru_cache(maxsize=16)
def _source(words: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """The pattern over and over, a slab long from any place of its first repetition on."""
    pattern = _on_the_host(words)[:TILE].tobytes()
    return ctypes.create_string_buffer(pattern * (SLAB // len(pattern) + 1))


def _in_the_cache(words: torch.Tensor, wanted: tuple[int, ...], device: torch.device) -> None:
    """In torch's own cache of CUDA memory, which cuts what is needed from any larger block of a pool."""
    small = sum(size for size in wanted if size <= SMALL_POOL)
    grown = [
        *(size for size in wanted if size > SMALL_POOL),
        SLAB + 1,
        *[SMALL_POOL] * -(-COPIES * small // SMALL_POOL),
    ]
    taken = [_taken(size, device) for size in grown]
    taken += [_taken(size, device) for size in _cached(words.device.index)]
    for block in taken:
        _fill(block, words)


def _taken(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(-(-size // 8), dtype=torch.int64, device=device)


def _cached(device: int) -> list[int]:
    """Sizes of the free blocks that CUDA's caching allocator would use on this stream before it asks for more."""
    stream = torch.cuda.current_stream(device).cuda_stream
    free = sorted(
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if (segment["device"], segment["stream"]) == (device, stream)
        and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        for block in segment["blocks"]
        if block["state"] == "inactive"
    )
    swept, total = [], 0
    for size in free:
        total += size
        if total > SWEPT:
            break
        swept.append(size)
    return swept


def _fill(block: torch.Tensor, words: torch.Tensor) -> None:
    """Write the pattern in two copies, whole tiles and the rest."""
    own, whole = words[_place(block) :][:TILE], len(block) // TILE
    block[: whole * TILE].view(whole, TILE).copy_(own)
    block[whole * TILE :].copy_(own[: len(block) - whole * TILE])


def _held(block: torch.Tensor, words: torch.Tensor) -> tuple[int, int]:
    """How many words of a block hold the pattern, out of those looked at: its first TILE tell enough of a large one."""
    found = block[:TILE].cpu().numpy()
    at = _place(block)
    return int(np.count_nonzero(found == _on_the_host(words)[at : at + len(found)])), len(found)


@lru_cache(maxsize=16)
def _on_the_host(words: torch.Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = words.cpu().numpy()
    return array


def _place(block: torch.Tensor) -> int:
    """Where in the pattern a block begins."""
    return block.data_ptr() // 8 % TILE


def poisoned(raw: torch.Tensor, found: torch.Tensor, value: torch.Tensor, size: float) -> Iterator[tuple[str, float]]:
    """How far the elements that hold no poison are from what is right, for each poison that some elements hold."""
    integers = {2: torch.int16, 4: torch.int32}.get(raw.element_size())
    if integers is None:
        return
    bits = raw.contiguous().view(integers)
    for name, byte in POISON_BYTES.items():
        pattern = int.from_bytes(bytes([byte]) * raw.element_size(), "little", signed=True)
        held = bits == pattern
        # On the CPU torch rounds every NaN to the bf16 of all ones: there the pattern says nothing.
        ambiguous = name == "0xFF" and raw.dtype is torch.bfloat16 and raw.device.type == "cpu"
        if held.any() and not ambiguous:
            rest = torch.where(held, 0.0, found - value)
            yield f"poison={name}", relative(float(torch.where(rest.isfinite(), rest, 1e30).norm()), size)
