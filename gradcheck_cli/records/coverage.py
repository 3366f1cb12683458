"""How much of each axis value was executed? Counted over the verdicts of a run."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.verdict import Outcome, Verdict


class Covered(Record, frozen=True, kw_only=True):
    """One value of one axis: the cases that have it, out of those asked, and out of those executed."""

    axis: str
    value: str | int
    asked: int
    executed: int


def coverage(verdicts: Sequence[Verdict]) -> list[Covered]:
    """Every value of every axis that has more than one among the cases asked, in the order of a case's id."""
    asked = [verdict for verdict in verdicts if verdict.outcome is not Outcome.EXCLUDED]
    counted: dict[tuple[str, str | int], list[int]] = {}
    for axis in AXES:
        for verdict in asked:
            if axis in verdict.axes:
                pair = counted.setdefault((axis, verdict.axes[axis]), [0, 0])
                pair[0] += 1
                pair[1] += verdict.outcome.executed
    values = [axis for axis, _ in counted]
    return [
        Covered(axis=axis, value=value, asked=asked_, executed=executed)
        for (axis, value), (asked_, executed) in counted.items()
        if values.count(axis) > 1
    ]
