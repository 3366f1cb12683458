"""Which expression holds for these cases, and for no other of a run?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradcheck_cli.records.case import AXES, Case

# Always named: without them the expression would hold for other layers, in other runs.
_ANCHORS = ("provider", "api")
# A failure is not looked up by these: an entry for one size or seed would miss it in the next run.
_SIZES = ("num_gemms", "tokens_per_expert", "in_features", "out_features", "seed")

# Of what a run had in common these are always named; of the other axes only what is not their default, or an entry
# would list every knob that nobody turned.
_TOLD = ("path", "single_grouped_weight", "fuse_wgrad_accumulation", "dtype", "bias", "microbatches", "grad_output")
_DEFAULTS = Case(provider="p", api="a").axes()

Point = dict[str, str | int]
Box = dict[str, list[str | int]]


def covering(inside: Sequence[Case], outside: Sequence[Case]) -> str:
    """Values of axes, joined by `and`; where these cannot tell the two apart, with an exception, or joined by `or`.

    What all cases of these layers had in common is named too: of anything else the run says nothing.
    """
    return _Run(inside, outside).expression()


class _Run:
    """The cases as points, and the axes along which they differ."""

    def __init__(self, inside: Sequence[Case], outside: Sequence[Case]) -> None:
        self._inside = [case.axes() for case in dict.fromkeys(inside)]
        self._outside = [case.axes() for case in outside]
        every = {axis: list(dict.fromkeys(p[axis] for p in (*self._inside, *self._outside))) for axis in AXES}
        self._anchors = (*_ANCHORS, *self._shared())
        self._values = {axis: values for axis, values in every.items() if axis in self._anchors or len(values) > 1}

    def expression(self) -> str:
        """One box of values if it can be, else one without another, else several."""
        box = self._around(self._inside)
        within = [point for point in self._outside if _holds(box, point)]
        if not within:
            return self._said(self._shortest(box, self._outside, self._anchors))
        exception = self._around(within)
        if not any(_holds(exception, point) for point in self._inside):
            beyond = [point for point in self._outside if not _holds(exception, point)]
            least = self._shortest(exception, self._inside, anchors=())
            return f"{self._said(self._shortest(box, beyond, self._anchors))} and not ({self._said(least)})"
        return " or ".join(dict.fromkeys(map(self._said, self._boxes(self._inside))))

    def _shared(self) -> list[str]:
        """The axes, sizes apart, that have one value in all cases of the layers that are inside."""
        layers = {(point["provider"], point["api"]) for point in self._inside}
        alike = [point for point in (*self._inside, *self._outside) if (point["provider"], point["api"]) in layers]
        shared = [axis for axis in AXES if axis not in _SIZES and len({point[axis] for point in alike}) == 1]
        return [axis for axis in shared if axis in _TOLD or self._inside[0][axis] != _DEFAULTS[axis]]

    def _around(self, points: Sequence[Point]) -> Box:
        return {axis: list(dict.fromkeys(point[axis] for point in points)) for axis in self._values}

    def _boxes(self, inside: list[Point]) -> list[Box]:
        """Boxes that hold all that is inside and nothing that is outside: one if it can be, else along an axis."""
        box = self._around(inside)
        if not any(_holds(box, point) for point in self._outside):
            return [self._shortest(box, self._outside, self._anchors)]
        # A case alone is a box without others: as long as a box has some, there is an axis to split it along.
        axis = min((axis for axis in box if len(box[axis]) > 1), key=lambda axis: len(box[axis]))
        parts = [[point for point in inside if point[axis] == value] for value in box[axis]]
        return [found for part in parts for found in self._boxes(part)]

    def _shortest(self, box: Box, others: Sequence[Point], anchors: Sequence[str]) -> Box:
        """The box without the axes that keep nothing out, the last axes first: those are sizes, and say least."""
        for axis in reversed([axis for axis in box if axis not in anchors]):
            fewer = {name: values for name, values in box.items() if name != axis}
            if fewer and not any(_holds(fewer, point) for point in others):
                box = fewer
        return box

    def _said(self, box: Box) -> str:
        return " and ".join(self._condition(axis, values) for axis, values in box.items())

    def _condition(self, axis: str, values: list[str | int]) -> str:
        """By the values that it has, or where these are many, by the few that it has not."""
        rest = [value for value in self._values[axis] if value not in values]
        if axis not in self._anchors and len(values) > 2 and 0 < len(rest) < len(values):
            return f"{axis}!={_value(rest[0])}" if len(rest) == 1 else f"{axis} not in ({_listed(rest)})"
        return f"{axis}={_value(values[0])}" if len(values) == 1 else f"{axis} in ({_listed(values)})"


def _holds(box: Box, point: Point) -> bool:
    return all(point[axis] in values for axis, values in box.items())


def _listed(values: list[str | int]) -> str:
    return ", ".join(map(_value, values))


def _value(value: str | int) -> str:
    return str(value) if re.fullmatch(r"[\w.+-]+", str(value)) else f'"{value}"'
