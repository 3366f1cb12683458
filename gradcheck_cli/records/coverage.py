"""How much of each axis value, and of each two together, was executed? Counted over the verdicts of a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.verdict import Outcome, Verdict


class Covered(Record, frozen=True, kw_only=True):
    """One value of one axis: the cases that have it, out of those asked, and out of those executed."""

    axis: str
    value: str | int
    asked: Annotated[int, Meta(ge=1)]
    executed: Annotated[int, Meta(ge=0)]


class Pairs(Record, frozen=True, kw_only=True):
    """Values of two axes that some case of one layer has together: those asked, and of these those executed."""

    asked: Annotated[int, Meta(ge=0)] = 0
    executed: Annotated[int, Meta(ge=0)] = 0


def together(verdicts: Sequence[Verdict]) -> Pairs:
    """Every two values of axes that vary in a layer, which is a provider's api: each pair once a layer."""
    layers: dict[tuple[str | int | None, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome is not Outcome.EXCLUDED:
            layers.setdefault((verdict.axes.get("provider"), verdict.axes.get("api")), []).append(verdict)
    counted = [0, 0]
    for asked in layers.values():
        executed = [verdict for verdict in asked if verdict.outcome.executed]
        varying = [axis for axis in AXES if len({verdict.axes.get(axis) for verdict in asked}) > 1]
        for place, cases in enumerate((asked, executed)):
            counted[place] += _pairs([[verdict.axes.get(axis) for verdict in cases] for axis in varying])
    return Pairs(asked=counted[0], executed=counted[1])


def _pairs(columns: list[list[str | int | None]]) -> int:
    """How many different values stand together in some row, over every two columns.

    Without the column of most values, that of a seed, few rows of many are left: those pairs are counted apart.
    """
    *rest, widest = sorted(columns, key=lambda column: len(set(column))) or [[]]
    rows = set(zip(*rest, strict=True))
    narrow = sum(len({(row[i], row[j]) for row in rows}) for i, j in itertools.combinations(range(len(rest)), 2))
    return narrow + sum(len(set(zip(widest, column, strict=True))) for column in rest)


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
