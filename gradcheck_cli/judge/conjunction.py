"""What do some cases have in common that no other case has? The shortest conjunction of `axis in values`.

Sets of cases are bit masks: bit i is the i-th case. A conjunction is as long as the values that it takes to tell it,
so that `seed in (1, 5, 8)` is no shorter than three terms of one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gradcheck_cli.records.rule import Term

Value = str | int
Point = Mapping[str, Value]

# All conjunctions of so many terms are tried; what is longer than that, few would read.
MOST_TERMS = 3
MOST_RULES = 5


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Who has which value, for each axis on which the cases differ."""

    everyone: int
    having: dict[str, dict[Value, int]]  # axis -> value -> cases


@dataclass(frozen=True, kw_only=True)
class Box:
    """A conjunction with one value a term, and the cases that meet it."""

    terms: tuple[tuple[str, Value], ...]
    inside: int


def cases(points: Sequence[Point], axes: Sequence[str]) -> Cases:
    """The cases in the order given; an axis that is the same everywhere says nothing, and is left out."""
    having: dict[str, dict[Value, int]] = {axis: {} for axis in axes}
    for number, point in enumerate(points):
        for axis in axes:
            having[axis][point[axis]] = having[axis].get(point[axis], 0) | 1 << number
    return Cases(
        everyone=(1 << len(points)) - 1, having={axis: values for axis, values in having.items() if len(values) > 1}
    )


def extension(among: Cases, terms: Sequence[Term]) -> int:
    """The cases that meet every term."""
    met = among.everyone
    for term in terms:
        met &= _any(among, term.axis, term.values)
    return met


def conjunctions(among: Cases, failing: int) -> list[list[Term]]:
    """One conjunction that is true of exactly these cases, else a few that are true of some of them and no others.

    None has as many values as there are cases that it says something new of: that would be a list of them.
    """
    whole = exact(among, failing)
    if whole is not None and length(whole) < failing.bit_count():
        return [whole]
    return _cover(among, failing)


def exact(among: Cases, failing: int) -> list[Term] | None:
    """The shortest conjunction that is true of these cases and no others; None where there is none.

    It names no value that none of these cases has. For given axes the tightest is that of all values that they have, so
    that only the axes are left to choose.
    """
    tight = {axis: _values(among, axis, failing) for axis in among.having}
    allowed = {axis: _any(among, axis, values) for axis, values in tight.items()}
    useful = [axis for axis in tight if allowed[axis] != among.everyone]
    if _all(among, allowed, useful) != failing:
        return None
    found = [
        chosen
        for size in range(MOST_TERMS + 1)
        for chosen in combinations(useful, size)
        if _all(among, allowed, chosen) == failing
    ]
    # min keeps the first of equals, and the axes are in the order of a case's id.
    if not found:
        found = [_without_the_needless(among, tight, allowed, failing)]
    told = [[_term(among, axis, tight[axis]) for axis in chosen] for chosen in found]
    return min(told, key=lambda terms: (length(terms), len(terms), sum(len(term.values) for term in terms)))


def length(terms: Sequence[Term]) -> int:
    """How many values it takes to tell a conjunction."""
    return sum(term.length for term in terms)


def _without_the_needless(
    among: Cases, tight: dict[str, list[Value]], allowed: dict[str, int], failing: int
) -> tuple[str, ...]:
    """Greedily: each axis in turn is dropped where the others do, those of most values and the last ones first."""
    kept = list(tight)
    order = list(tight)
    for axis in sorted(order, key=lambda axis: (-len(tight[axis]), -order.index(axis))):
        others = [other for other in kept if other != axis]
        if _all(among, allowed, others) == failing:
            kept = others
    return tuple(kept)


def _cover(among: Cases, failing: int) -> list[list[Term]]:
    """Greedily: each time the box without any other case that says most that is new, as wide as it can be made."""
    boxes = list(_boxes(among, failing, Box(terms=(), inside=among.everyone), list(among.having)))
    chosen: list[list[Term]] = []
    left = failing
    while boxes and len(chosen) < MOST_RULES:
        best = max(boxes, key=lambda box: ((box.inside & left).bit_count(), -len(box.terms)))
        if (best.inside & left).bit_count() <= len(best.terms):
            break
        terms = _widened(among, best, failing, left)
        chosen.append(terms)
        left &= ~extension(among, terms)
    return chosen


def _boxes(among: Cases, failing: int, outer: Box, axes: list[str]) -> Iterator[Box]:
    """Every box inside the outer one that holds failing cases alone, and enough of them; none inside another."""
    for number, axis in enumerate(axes):
        for value, having in among.having[axis].items():
            box = Box(terms=(*outer.terms, (axis, value)), inside=outer.inside & having)
            if (box.inside & failing).bit_count() <= len(box.terms):
                continue
            if not box.inside & ~failing:
                yield box
            elif len(box.terms) < MOST_TERMS:
                yield from _boxes(among, failing, box, axes[number + 1 :])


def _widened(among: Cases, box: Box, failing: int, left: int) -> list[Term]:
    """The box with every further value that brings in more of the cases that are left, and no others."""
    terms = [_term(among, axis, [value]) for axis, value in box.terms]
    covered = box.inside
    for number, (axis, first) in enumerate(box.terms):
        for value in among.having[axis]:
            values = [one for one in among.having[axis] if one == value or one in terms[number].values]
            wider = [*terms[:number], _term(among, axis, values), *terms[number + 1 :]]
            inside = extension(among, wider)
            if value != first and not inside & ~failing and inside & left & ~covered:
                terms, covered = wider, inside
    return terms


def _term(among: Cases, axis: str, values: list[Value]) -> Term:
    return Term(axis=axis, values=values, others=[value for value in among.having[axis] if value not in values])


def _values(among: Cases, axis: str, some: int) -> list[Value]:
    return [value for value, having in among.having[axis].items() if having & some]


def _any(among: Cases, axis: str, values: Sequence[Value]) -> int:
    met = 0
    for value in values:
        met |= among.having[axis][value]
    return met


def _all(among: Cases, allowed: dict[str, int], axes: Sequence[str]) -> int:
    met = among.everyone
    for axis in axes:
        met &= allowed[axis]
    return met
