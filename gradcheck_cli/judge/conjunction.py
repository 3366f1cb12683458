"""What do some cases have in common that no other case has? The shortest conjunction of `axis in values`.

A conjunction is as long as the values that it takes to tell it, so that `seed in (1, 5, 8)` is no shorter than three
terms of one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gradcheck_cli.judge.boxes import Box, Cases, Value
from gradcheck_cli.records.rule import Term

# All conjunctions of so many terms are tried; what is longer than that, few would read.
MOST_TERMS = 3
MOST_RULES = 5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A conjunction with one value a term, and the cases that meet it."""

    terms: tuple[tuple[str, Value], ...]
    inside: int


def conjunctions(among: Cases, failing: int) -> list[Box]:
    """One conjunction that is true of exactly these cases, else a few that are true of some of them and no others.

    None has as many values as there are cases that it says something new of: that would be a list of them.
    """
    whole = exact(among, failing)
    if whole is not None and length(whole.terms()) < failing.bit_count():
        return [whole]
    return _cover(among, failing)


def exact(among: Cases, failing: int) -> Box | None:
    """The shortest conjunction that is true of these cases and no others; None where there is none.

    It names no value that none of these cases has. For given axes the tightest is that of all values that they have, so
    that only the axes are left to choose.
    """
    tight = among.around(failing)
    useful = [axis for axis, allowed in tight.allowed.items() if allowed != among.everyone]
    if tight.inside(useful) != failing:
        return None
    found = [
        tight.only(chosen)
        for size in range(MOST_TERMS + 1)
        for chosen in combinations(useful, size)
        if tight.inside(chosen) == failing
    ]
    # min keeps the first of equals, and the axes are in the order of a case's id.
    return min(found or [tight.needed(~failing, _longest_first(tight))], key=_cost)


def length(terms: Sequence[Term]) -> int:
    """How many values it takes to tell a conjunction."""
    return sum(term.length for term in terms)


def _cost(box: Box) -> tuple[int, int, int]:
    return length(box.terms()), len(box.values), sum(map(len, box.values.values()))


def _longest_first(box: Box) -> list[str]:
    """Its axes, those of most values and the last ones first."""
    return sorted(box.values, key=lambda axis: len(box.values[axis]))[::-1]


def _cover(among: Cases, failing: int) -> list[Box]:
    """Greedily: each time the cell without any other case that says most that is new, as wide as it can be made."""
    cells = list(_cells(among, failing, Cell(terms=(), inside=among.everyone), list(among.having)))
    chosen: list[Box] = []
    left = failing
    while cells and len(chosen) < MOST_RULES:
        best = max(cells, key=lambda cell: ((cell.inside & left).bit_count(), -len(cell.terms)))
        if (best.inside & left).bit_count() <= len(best.terms):
            break
        chosen.append(_widened(among, best, failing, left))
        left &= ~chosen[-1].inside()
    return chosen


def _cells(among: Cases, failing: int, outer: Cell, axes: list[str]) -> Iterator[Cell]:
    """Every cell inside the outer one that holds failing cases alone, and enough of them; none inside another."""
    for number, axis in enumerate(axes):
        for value, having in among.having[axis].items():
            cell = Cell(terms=(*outer.terms, (axis, value)), inside=outer.inside & having)
            if (cell.inside & failing).bit_count() <= len(cell.terms):
                continue
            if not cell.inside & ~failing:
                yield cell
            elif len(cell.terms) < MOST_TERMS:
                yield from _cells(among, failing, cell, axes[number + 1 :])


def _widened(among: Cases, cell: Cell, failing: int, left: int) -> Box:
    """The cell with every further value that brings in more of the cases that are left, and no others."""
    box = among.box({axis: [value] for axis, value in cell.terms})
    for axis, first in cell.terms:
        for value in among.having[axis]:
            values = [one for one in among.having[axis] if one == value or one in box.values[axis]]
            wider = among.box({**box.values, axis: values})
            inside = wider.inside()
            if value != first and not inside & ~failing and inside & left & ~box.inside():
                box = wider
    return box
