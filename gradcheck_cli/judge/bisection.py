"""Between which versions did a case change? As few of them are run as that takes.

Two versions with different results have a change between them, and halving the gap finds it. Of a gap between two with
the same result nothing is known until one inside it is run: a fault may have come and gone. Such gaps are halved as
well, the widest first, as long as no change is known of at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

from gradcheck_cli.judge.versions import same
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.records.versions import Change, Kind

R = TypeVar("R")


def search(count: int, result: Callable[[int], R], *, everything: bool = False) -> dict[int, R]:
    """What was asked of `count` versions, in that order: both ends, then the middles of gaps.

    Of n versions of which one differs from the one before, ceil(log2(n)) + 2 are asked at most.
    """
    found: dict[int, R] = {}
    asked: int | None = 0
    while asked is not None:
        found[asked] = result(asked)
        asked = count - 1 if count - 1 not in found else _middle(found, everything=everything)
    return found


def _middle(found: Mapping[int, R], *, everything: bool) -> int | None:
    """Whom to ask next; None where each change that is known of lies between two neighbours."""
    gaps = [(low, high) for low, high in pairwise(sorted(found)) if high - low > 1]
    apart = [(low, high) for low, high in gaps if found[low] != found[high]]
    settled = not apart and any(found[low] != found[high] for low, high in pairwise(sorted(found)))
    if not gaps or (settled and not everything):
        return None
    low, high = max(apart or gaps, key=lambda gap: gap[1] - gap[0])
    return (low + high) // 2


def changes(tried: Sequence[tuple[str, Verdict]]) -> list[Change]:
    """What changed from a version to the next that was run, the oldest first.

    Where a case was refused in between, it is also told from which version on it was wrong, or right.
    """
    told = [
        Change(kind=_kind(before.outcome, after.outcome), old=old, new=new)
        for (old, before), (new, after) in pairwise(tried)
        if same(before) != same(after)
    ]
    return told + list(_across_refusals(tried))


def _across_refusals(tried: Sequence[tuple[str, Verdict]]) -> list[Change]:
    """Right on one side of versions that refuse a case, and wrong on the other."""
    runs = [(refused, list(some)) for refused, some in groupby(tried, lambda one: _refused(one[1].outcome))]
    found = []
    for (_, before), (refused, between), (_, after) in zip(runs, runs[1:], runs[2:], strict=False):
        (old, was), (new, now) = before[-1], after[0]
        if refused and (was.outcome is Outcome.PASSED) is not (now.outcome is Outcome.PASSED):
            kind = _kind(was.outcome, now.outcome)
            found.append(Change(kind=kind, old=old, new=new, refused=[version for version, _ in between]))
    return found


def _refused(outcome: Outcome) -> bool:
    return outcome.green and outcome is not Outcome.PASSED


def _kind(was: Outcome, now: Outcome) -> Kind:
    if _refused(was) or _refused(now):
        return "closed" if _refused(now) else "opened"
    if Outcome.PASSED in (was, now):
        return "broke" if was is Outcome.PASSED else "mended"
    return "changed"
