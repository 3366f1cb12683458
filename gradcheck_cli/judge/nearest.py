"""Which case that passed is one axis away from one that failed? On an axis of the rule where there is a choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gradcheck_cli.judge.boxes import Point
from gradcheck_cli.records.case import DEFAULTS
from gradcheck_cli.records.rule import Nearest
from gradcheck_cli.records.verdict import Outcome, Verdict

Row = tuple[Verdict, Point]
# Its api is a fault: that another fault changes nothing in a case says nothing of this one.
_FAULTS = "faults"


class _Marked(NamedTuple):
    """A case, its place among others, and the number that its axes add up to: but for one axis, that of neighbours."""

    place: int
    row: Row
    mark: int

    def without(self, axis: str) -> int:
        """What the other axes add up to."""
        return self.mark - hash((axis, self.row[1][axis]))

    @property
    def order(self) -> tuple[int, int]:
        """The simplest first, then the first."""
        return simplicity(self.row[1]), self.place


def nearest(failing: Sequence[Row], rows: Sequence[Row], preferred: Sequence[str]) -> Nearest | None:
    """The neighbour that passed, of the simplest case that has one; None where every case that passed is further away.

    Of several, one on an axis of the rule, then that of the simplest failing case, then the simplest itself.
    """
    lost = _marked(failing)
    kept = _marked(row for row in rows if row[0].outcome is Outcome.PASSED)
    found = (
        (axis not in preferred, one.order[0], other.order[0], one.place, number, other.place, axis, one.row, other.row)
        for number, axis in enumerate(failing[0][1] if failing else ())
        for one, other in _neighbours(axis, lost, kept)
    )
    first = min(found, key=lambda pair: pair[:6], default=None)
    if first is None:
        return None
    *_, axis, (verdict, point), (passed, beside) = first
    return Nearest(case=passed.case, beside=verdict.case, axis=axis, failing=point[axis], passing=beside[axis])


def simplicity(point: Point) -> int:
    """How many axes are not the default: the fewer, the simpler."""
    return sum(point[axis] != default for axis, default in DEFAULTS.items())


def _marked(rows: Iterable[Row]) -> list[_Marked]:
    return [_Marked(place, row, sum(map(hash, row[1].items()))) for place, row in enumerate(rows)]


def _neighbours(axis: str, lost: Sequence[_Marked], kept: Sequence[_Marked]) -> Iterable[tuple[_Marked, _Marked]]:
    """Of all that differ on this axis alone, the first failing case and the first that passed."""
    failed: dict[int, _Marked] = {}
    for one in lost:
        if (axis, one.row[1]["provider"]) != ("api", _FAULTS):
            _put_first(failed, one.without(axis), one)
    passed: dict[int, _Marked] = {}
    for one in kept:
        if (rest := one.without(axis)) in failed:
            _put_first(passed, rest, one)
    # Different axes may add up to one number, once in some thousand years.
    pairs = ((failed[rest], other) for rest, other in passed.items())
    return (pair for pair in pairs if pair[0].row[1] == {**pair[1].row[1], axis: pair[0].row[1][axis]})


def _put_first(found: dict[int, _Marked], rest: int, one: _Marked) -> None:
    if rest not in found or one.order < found[rest].order:
        found[rest] = one
