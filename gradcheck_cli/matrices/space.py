"""Which axis values may stand together in one case of a layer? Answered for any few of them, with such a case."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gradcheck_cli.expression import Predicate, axes_named, compile_expression
from gradcheck_cli.matrices.constraints import CONSTRAINTS
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.splits import FEWEST_EXPERTS

Values = dict[str, list[Any]]
Domains = list[tuple[int, ...]]


class Table(NamedTuple):
    """Places of axes, and the numbers of their values that must not stand together."""

    places: tuple[int, ...]
    forbidden: frozenset[tuple[int, ...]]


class Space:
    """The values of a layer's axes, each by the number that it has among all, less what the constraints forbid.

    `apart` are expressions that must not hold either.
    """

    def __init__(self, provider: str, api: str, values: Values, apart: Sequence[str] = ()) -> None:
        self._layer: dict[str, Any] = {"provider": provider, "api": api}
        self._names = list(values)
        self.values = [(name, value) for name, own in values.items() for value in own]
        self.axis_of = [self._names.index(name) for name, _ in self.values]
        rules = [(rule.rejects, group) for rule in CONSTRAINTS for group in rule.about]
        rules += [(compile_expression(text), axes_named(text)) for text in apart]
        self._all = [self._table(rejects, group) for rejects, group in rules]
        self._tables = [[one for one in self._all if place in one.places] for place in range(len(values))]
        numbered = enumerate(self.axis_of)
        of_axis = itertools.groupby(numbered, key=lambda pair: pair[1])
        whole = [tuple(number for number, _ in own) for _, own in of_axis]
        self.root = self._narrowed(whole, range(len(whole)))

    def case(self, row: Iterable[int]) -> Case:
        """The case of one value an axis."""
        return self._made(dict(self.values[number] for number in row))

    def row(self, case: Case) -> list[int]:
        """The numbers of a case's values; ValueError where it has one that is not among them."""
        return [self.values.index((name, getattr(case, name))) for name in self._names]

    def together(self, numbers: Iterable[int], domains: Domains | None = None) -> Domains | None:
        """What is left of each axis once these values are chosen; None where nothing is left of one."""
        left = self.root if domains is None else domains
        for number in numbers:
            place = self.axis_of[number]
            if left is None or number not in left[place]:
                return None
            left = self._narrowed([*left[:place], (number,), *left[place + 1 :]], [place])
        return left

    def example(self, domains: Domains | None, turn: int = 0) -> list[int] | None:
        """One value an axis out of what is left, others at another turn; None where no choice is allowed."""
        if domains is None:
            return None
        place = self._contested(domains)
        if place is None:
            return [own[turn % len(own)] for own in domains]
        first = turn % len(domains[place])
        choices = domains[place][first:] + domains[place][:first]
        found = (self.example(self.together([number], domains), turn) for number in choices)
        return next((row for row in found if row), None)

    def _made(self, axes: dict[str, Any]) -> Case:
        """The case of some values; a list of splits brings the number of its experts."""
        splits = axes.get("m_splits", "balanced")
        experts: dict[str, Any] = {} if splits in FEWEST_EXPERTS else {"num_gemms": len(splits.split(","))}
        return Case(**self._layer, **experts, **axes)

    def _contested(self, domains: Domains) -> int | None:
        """An open axis of the table that can still be broken and has fewest such axes; None where none can be."""
        left = [set(own) for own in domains]
        opened = (
            [at for at in table.places if len(domains[at]) > 1]
            for table in self._all
            if any(all(n in left[at] for n, at in zip(some, table.places, strict=True)) for some in table.forbidden)
        )
        fewest = min(opened, key=len, default=None)
        return fewest[0] if fewest else None

    def _table(self, rejects: Predicate, group: Sequence[str]) -> Table:
        asked = [name for name in group if name in self._names]
        numbered = [[(at, name, value) for at, (name, value) in enumerate(self.values) if name == one] for one in asked]
        forbidden = frozenset(
            tuple(at for at, _, _ in some)
            for some in itertools.product(*numbered)
            if rejects(self._made({name: value for _, name, value in some}))
        )
        return Table(tuple(map(self._names.index, asked)), forbidden)

    def _narrowed(self, domains: Domains, changed: Iterable[int]) -> Domains | None:
        """Less the values that a table forbids once all its other axes are chosen."""
        waiting = list(changed)
        while waiting:
            place = waiting.pop()
            for table in self._tables[place]:
                open_ = [at for at in table.places if len(domains[at]) > 1] or [place]
                if len(open_) > 1:
                    continue
                some = itertools.product(*(domains[at] for at in table.places))
                column = table.places.index(open_[0])
                kept = tuple(row[column] for row in some if row not in table.forbidden)
                if not kept:
                    return None
                if len(kept) < len(domains[open_[0]]):
                    domains[open_[0]] = kept
                    waiting.append(open_[0])
        return domains
