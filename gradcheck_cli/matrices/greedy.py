"""Which few rows hold all values that may stand together? covertable finds them; what they lack is counted here.

To write a cover takes covertable (https://covertable.walkframe.com), which development has; to use one takes nothing.
allpairspy 2.5.1 takes earlier rows as well, but ends at the first row that holds nothing new: of te:api=module, axes of
many values first, it left 55 of 3,747 pairs. Started anew after a row for each that it leaves, it took 115 rows in
place of 85. coverwise 1.6.1 gives up on our constraints ("search budget exceeded").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcheck_cli.matrices.space import Domains, Space

# How far below the best a choice may be that ends the search for a better one, by strength: of triples there are too
# many to weigh them all for each choice.
_TOLERANCE = {2: 0, 3: 1000}


class Ledger:
    """Which `strength` values of different axes no row has held yet: true at the place that their numbers name."""

    def __init__(self, space: Space, strength: int) -> None:
        self.strength = strength
        axis = np.array(space.axis_of)
        other = axis[:, None] != axis[None, :]
        self.left = np.ones((len(axis),) * strength, dtype=np.bool_)
        for pair in itertools.combinations(range(strength), 2):
            self.left &= other.reshape([len(axis) if place in pair else 1 for place in range(strength)])
        self.total = self.count()

    def count(self) -> int:
        """How many are left, in whatever order their values are named."""
        return int(self.left.sum()) // math.factorial(self.strength)

    def each(self) -> list[list[int]]:
        """Those that are left."""
        return [some for some in np.argwhere(self.left).tolist() if some == sorted(some)]

    def strike(self, row: list[int]) -> None:
        """A row holds all of its values together."""
        self.left[np.ix_(*[row] * self.strength)] = False

    def barred(self, space: Space) -> npt.NDArray[np.bool_]:
        """Those that are left and hold two values that a space does not allow together."""
        barred = np.zeros_like(self.left)
        doubtful = np.asarray(self.left.any(axis=tuple(range(2, self.strength))))
        for turn, pair in enumerate(np.argwhere(doubtful).tolist()):
            if not doubtful[tuple(pair)]:
                continue
            row = space.example(space.together(pair), turn)
            if row:
                doubtful[np.ix_(row, row)] = False
                continue
            doubtful[pair[1], pair[0]] = False
            for places in itertools.permutations(range(self.strength), 2):
                at: list[slice | int] = [slice(None)] * self.strength
                at[places[0]], at[places[1]] = pair
                barred[tuple(at)] = True
        return barred & self.left


def rows(space: Space, ledger: Ledger, earlier: list[list[int]]) -> Iterator[list[int]]:
    """Rows beside the earlier ones until nothing is left that this space allows; the rest stays in the ledger."""
    barred = ledger.barred(space)
    if not (ledger.left & ~barred).any():
        return
    for row in _made(space, ledger.strength, earlier):
        ledger.strike(row)
        yield row
    for some in ledger.each():  # what covertable gave up
        if ledger.left[tuple(some)] and not barred[tuple(some)] and (rest := space.example(space.together(some))):
            ledger.strike(rest)
            yield rest


def _made(space: Space, strength: int, earlier: list[list[int]]) -> list[list[int]]:
    """Those of covertable, which takes the earlier ones for given and lists them first."""
    from covertable import make  # noqa: PLC0415  only who writes a cover has it

    factors = [[at for at, of in enumerate(space.axis_of) if of == place] for place in sorted(set(space.axis_of))]
    made: list[list[int]] = make(
        factors,
        strength=strength,
        # No axes are required: it is asked of every few that are chosen, and tells what the others leave possible.
        constraints=[{"operator": "fn", "requires": [], "evaluate": _judged(space, earlier)}],
        presets=[dict(enumerate(row)) for row in earlier],
        tolerance=_TOLERANCE[strength],
    )
    return made[len(earlier) :]


def _judged(space: Space, earlier: list[list[int]]) -> Callable[[dict[int, int]], bool | None]:
    """May these values stand together? None while it depends on the axes that are still open.

    Earlier rows may, whatever this space says of them: they were made for others, and what they hold counts.
    """
    axes = len(set(space.axis_of))
    given = {frozenset(row) for row in earlier}
    barred = Ledger(space, 2).barred(space)
    known: dict[tuple[int, ...], Domains | None] = {(): space.root}

    def left(chosen: tuple[int, ...]) -> Domains | None:
        if chosen not in known:
            *before, last = chosen
            domains = None if barred[last, before].any() else left(tuple(before))
            known[chosen] = space.together([last], domains) if domains else None
        return known[chosen]

    def judged(row: dict[int, Any]) -> bool | None:
        if frozenset(row.values()) in given:
            return True
        if not left(tuple(row.values())):
            return False
        return True if len(row) == axes else None

    return judged
