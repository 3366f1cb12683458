"""How many tokens does each expert get? Named patterns of `m_splits`, and explicit lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# A named pattern needs at least this many experts to differ from a simpler one.
FEWEST_EXPERTS = {
    "balanced": 1,
    "uneven": 2,
    "empty_first": 3,
    "empty_middle": 3,
    "empty_last": 3,
    "hot": 2,
    "all_empty": 1,
}
EXPLICIT = r"[0-9]{1,7}(,[0-9]{1,7})*"  # at most 9,999,999 tokens for one expert
# What kernels of recipes pad to; the largest that all splits of a first microbatch are multiples of holds for all.
ALIGNMENTS = (128, 32, 16)
# `$` alone lets a newline follow; this is the end of a text to Python and to JSON Schema alike.
END = r"(?![\s\S])"
PATTERN = rf"^({'|'.join(FEWEST_EXPERTS)}|{EXPLICIT}){END}"


@lru_cache(maxsize=256)
def expand(m_splits: str, num_gemms: int, tokens_per_expert: int) -> tuple[int, ...]:
    """Tokens per expert of the first microbatch: a named pattern at a size, or the explicit list itself."""
    if m_splits not in FEWEST_EXPERTS:
        return tuple(int(part) for part in m_splits.split(","))
    total = num_gemms * tokens_per_expert
    if m_splits == "all_empty":
        return (0,) * num_gemms
    if m_splits == "balanced":
        return (tokens_per_expert,) * num_gemms
    if m_splits == "hot":
        hot = num_gemms // 2
        return tuple(max(total - (num_gemms - 1), 1) if i == hot else 1 for i in range(num_gemms))
    uneven = _uneven(total, num_gemms)
    empty = {"empty_first": 0, "empty_middle": num_gemms // 2, "empty_last": num_gemms - 1}.get(m_splits)
    return tuple(0 if i == empty else size for i, size in enumerate(uneven))


def _uneven(total: int, num_gemms: int) -> tuple[int, ...]:
    """Sizes that grow with the expert and avoid multiples of 8, so that nothing is aligned by luck."""
    whole = num_gemms * (num_gemms + 1) // 2
    sizes = [max(1, total * (i + 1) // whole) for i in range(num_gemms)]
    return tuple(size + 1 if size % 8 == 0 else size for size in sizes)


@lru_cache(maxsize=1024)
def of_microbatch(splits: tuple[int, ...], microbatch: int, multiple: int = 1) -> tuple[int, ...]:
    """Microbatch k rotates the splits by k experts and shrinks each by a quarter k times.

    A different size and a different owner of every row: a gradient taken from the wrong microbatch cannot
    have the right shape or value by luck. An expert with tokens keeps at least one. Sizes are rounded up to a
    `multiple`.
    """
    k = microbatch % len(splits)
    rotated = splits[-k:] + splits[:-k] if k else splits
    for _ in range(microbatch):
        rotated = tuple(-(-((3 * size + 3) // 4) // multiple) * multiple for size in rotated)
    return rotated


def rows_of(splits: Sequence[int], expert: int) -> slice:
    """Where an expert's rows are among those of all."""
    start = sum(splits[:expert])
    return slice(start, start + splits[expert])


TAIL = 16  # rows of a padded tail: no multiple that a path pads to is a whole one of the tokens before it


def alignment(splits: tuple[int, ...]) -> int:
    """The largest of `ALIGNMENTS` that all sizes are multiples of, or 1."""
    return next((size for size in ALIGNMENTS if not any(tokens % size for tokens in splits)), 1)
