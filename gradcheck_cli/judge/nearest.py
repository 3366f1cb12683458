"""Which case that passed is one axis away from one that failed? On an axis of the rule where there is a choice."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.judge.boxes import Point
from gradcheck_cli.records.case import DEFAULTS
from gradcheck_cli.records.rule import Nearest
from gradcheck_cli.records.verdict import Outcome, Verdict

Row = tuple[Verdict, Point]
# Its api is a fault: that another fault changes nothing in a case says nothing of this one.
_FAULTS = "faults"


def nearest(failing: Sequence[Row], rows: Sequence[Row], preferred: Sequence[str]) -> Nearest | None:
    """The neighbour that passed, of the simplest case that has one; None where every case that passed is further away.

    Of several, one on an axis of the rule, then that of the simplest failing case, then the simplest itself.
    """
    by_axis = {axis: _by_the_rest(rows, axis) for axis in (rows[0][1] if rows else ())}
    found = [
        (axis not in preferred, simplicity(lost), simplicity(kept), verdict, lost, passed, kept, axis)
        for verdict, lost in failing
        for axis, alike in by_axis.items()
        if (axis, lost["provider"]) != ("api", _FAULTS)
        for passed, kept in alike.get(_rest(lost, axis), ())
    ]
    if not found:
        return None
    *_, verdict, lost, passed, kept, axis = min(found, key=lambda one: one[:3])
    return Nearest(case=passed.case, beside=verdict.case, axis=axis, failing=lost[axis], passing=kept[axis])


def simplicity(point: Point) -> int:
    """How many axes are not the default: the fewer, the simpler."""
    return sum(point[axis] != default for axis, default in DEFAULTS.items())


def _by_the_rest(rows: Sequence[Row], axis: str) -> dict[tuple[object, ...], list[Row]]:
    """The cases that passed, by the values of all axes but one."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for verdict, point in rows:
        if verdict.outcome is Outcome.PASSED:
            found.setdefault(_rest(point, axis), []).append((verdict, point))
    return found


def _rest(point: Point, axis: str) -> tuple[object, ...]:
    return tuple(value for name, value in point.items() if name != axis)
