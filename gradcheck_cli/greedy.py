"""Which few rows hold all values that may stand together? One row after the other, each the best of some tried.

After D. M. Cohen et al., The AETG System: An Approach to Testing Based on Combinatorial Design (1997).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gradcheck_cli.space import Domains, Space

# Rows tried for each that is taken, by strength: more of them make fewer rows, and take longer.
_TRIED = {2: 50, 3: 12}


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

    def gain(self, row: list[int]) -> int:
        """How many a row would strike, each as often as its values have orders."""
        return int(self.left[np.ix_(*[row] * self.strength)].sum())

    def gains(self, candidates: tuple[int, ...], chosen: list[int]) -> list[int]:
        """For each candidate how many it would strike beside what is chosen."""
        found = self.left[np.ix_(candidates, *[chosen] * (self.strength - 1))]
        counted: list[int] = found.reshape(len(candidates), -1).sum(axis=1).tolist()
        return counted

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

    def drawn(self, chance: random.Random) -> list[int]:
        """Some that are left."""
        places = np.flatnonzero(self.left)
        at = np.unravel_index(places[chance.randrange(len(places))], self.left.shape)
        return [int(number) for number in at]

    def without(self, aside: npt.NDArray[np.bool_], some: list[int]) -> None:
        """Move some, in every order, from what is left to what was put aside."""
        for order in itertools.permutations(some):
            aside[order], self.left[order] = True, False


def rows(space: Space, ledger: Ledger, seed: int = 0) -> Iterator[list[int]]:
    """Rows until nothing is left that this space allows; what it does not stays in the ledger."""
    chance = random.Random(seed)  # noqa: S311  no secret
    aside = ledger.barred(space)
    ledger.left &= ~aside
    while True:
        tried: list[list[int]] = []
        while len(tried) < _TRIED[ledger.strength] and ledger.left.any():
            wanted = ledger.drawn(chance)
            allowed = space.together(wanted)
            row = (_filled(space, ledger, allowed, chance) if allowed else None) or space.example(allowed)
            if row:
                tried.append(row)
            else:
                ledger.without(aside, wanted)
        if not tried:
            break
        best = max(tried, key=ledger.gain)
        ledger.strike(best)
        yield best
    ledger.left |= aside


def _filled(space: Space, ledger: Ledger, domains: Domains, chance: random.Random) -> list[int] | None:
    """A row with a value of each axis that strikes most beside those chosen before; None at a dead end."""
    # Axes of many values first: a cover is as long as theirs have combinations.
    order = sorted(range(len(domains)), key=lambda place: -len(domains[place]) * chance.random())
    for place in order:
        own = domains[place]
        if len(own) == 1:
            continue
        chosen = [values[0] for values in domains if len(values) == 1]
        ranked = sorted((-gain, chance.random(), at) for at, gain in zip(own, ledger.gains(own, chosen), strict=True))
        narrowed = next((one for *_, at in ranked if (one := space.together([at], domains))), None)
        if narrowed is None:
            return None
        domains = narrowed
    return [own[0] for own in domains]
