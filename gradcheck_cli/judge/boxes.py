"""Which cases lie in a box of values, and which of its axes does it need?

Two ask what failing cases have in common, and both look among boxes: `judge/conjunction.py` for what is told with the
fewest values, of some cases if need be; `judge/covering.py` for what holds for all of them, and in other runs as well.
Sets of cases are bit masks: bit i is the i-th case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradcheck_cli.records.rule import Term

_MOST_VALUES = 1_000

Value = str | int
Point = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Who has which value, for each axis on which the cases differ."""

    everyone: int
    having: dict[str, dict[Value, int]]  # axis -> value -> cases

    def box(self, values: Mapping[str, Sequence[Value]]) -> Box:
        """The cases that have one of these values on each of these axes."""
        return Box(
            among=self,
            values={axis: list(some) for axis, some in values.items()},
            allowed={axis: _any(self.having[axis], some) for axis, some in values.items()},
        )

    def around(self, some: int) -> Box:
        """The tightest box that holds these cases: on each axis all values that they have, in the order of the run."""
        return self.box(
            {axis: [value for value, mask in having.items() if mask & some] for axis, having in self.having.items()}
        )


@dataclass(frozen=True, kw_only=True)
class Box:
    """A conjunction of `axis in values`, and for each axis the cases that have one of its values."""

    among: Cases
    values: dict[str, list[Value]]
    allowed: dict[str, int]

    def inside(self, axes: Iterable[str] | None = None) -> int:
        """The cases that meet the conditions on these axes; on every axis, where none are named."""
        met = self.among.everyone
        for axis in self.values if axes is None else axes:
            met &= self.allowed[axis]
        return met

    def only(self, axes: Iterable[str]) -> Box:
        """The box with no other conditions than those on these axes."""
        return self.among.box({axis: self.values[axis] for axis in axes})

    def needed(self, others: int, order: Iterable[str]) -> Box:
        """The box without each axis, in this order, that keeps none of the others out; one axis is always left."""
        kept = list(self.values)
        for axis in order:
            fewer = [one for one in kept if one != axis]
            if fewer and not self.inside(fewer) & others:
                kept = fewer
        return self.only(kept)

    def terms(self) -> list[Term]:
        """Its conditions, with the values that they leave out."""
        return [Term(axis=axis, values=values, others=self.others(axis)) for axis, values in self.values.items()]

    def others(self, axis: str) -> list[Value]:
        """The values of an axis that it leaves out."""
        return [value for value in self.among.having[axis] if value not in self.values[axis]]


def cases(points: Sequence[Point], axes: Sequence[str], kept: Sequence[str] = ()) -> Cases:
    """The cases in the order given; one that is the same everywhere says nothing, and is left out if not kept.

    So is one with more values than a rule would name, such as a seed of its own for each case: memory has no room.
    """
    numbers: dict[str, dict[Value, list[int]]] = {axis: {} for axis in axes}
    for axis, own in numbers.items():
        for number, point in enumerate(points):
            own.setdefault(point[axis], []).append(number)
    return Cases(
        everyone=(1 << len(points)) - 1,
        having={
            axis: {value: mask(some) for value, some in own.items()}
            for axis, own in numbers.items()
            if 1 < len(own) <= _MOST_VALUES or axis in kept
        },
    )


def mask(numbers: Sequence[int]) -> int:
    """The set of these cases, in ascending order: a bit mask, made at once, and not bit by bit."""
    bits = bytearray(numbers[-1] // 8 + 1 if numbers else 0)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bits, "little")


def members(some: int) -> list[int]:
    """The cases of a set, in ascending order."""
    written = f"{some:b}"[::-1]
    found, at = [], written.find("1")
    while at >= 0:
        found.append(at)
        at = written.find("1", at + 1)
    return found


def _any(having: Mapping[Value, int], values: Iterable[Value]) -> int:
    met = 0
    for value in values:
        met |= having[value]
    return met
