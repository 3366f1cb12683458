"""Which expression holds for these cases, and for no other of a run?

Unlike a rule of `judge/conjunction.py` it leaves no case out, and names what all had in common: it is for other runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.judge.boxes import Box, Point, cases
from gradcheck_cli.records.case import AXES, DEFAULTS, Case
from gradcheck_cli.records.rule import Term

# Always named: without them the expression would hold for other layers, in other runs.
_ANCHORS = ("provider", "api")
# A failure is not looked up by these: an entry for one size or seed would miss it in the next run.
_SIZES = ("num_gemms", "tokens_per_expert", "in_features", "out_features", "seed")

# Of what a run had in common these are always named; of the other axes only what is not their default, or an entry
# would list every knob that nobody turned.
_TOLD = ("path", "single_grouped_weight", "fuse_wgrad_accumulation", "dtype", "bias", "microbatches", "grad_output")


def covering(inside: Sequence[Case], outside: Sequence[Case]) -> str:
    """Values of axes, joined by `and`; where these cannot tell the two apart, with an exception, or joined by `or`.

    What all cases of these layers had in common is named too: of anything else the run says nothing.
    """
    return _Run(inside, outside).expression()


class _Run:
    """The cases in boxes: bits of those that are inside, and of those that are outside."""

    def __init__(self, inside: Sequence[Case], outside: Sequence[Case]) -> None:
        own = [case.axes() for case in dict.fromkeys(inside)]
        others = [case.axes() for case in outside]
        self._anchors = (*_ANCHORS, *_shared(own, others))
        self._among = cases([*own, *others], AXES, kept=self._anchors)
        self._inside = (1 << len(own)) - 1
        self._outside = self._among.everyone & ~self._inside

    def expression(self) -> str:
        """One box of values if it can be, else one without another, else several."""
        box = self._among.around(self._inside)
        within = box.inside() & self._outside
        if not within:
            return self._said(self._shortest(box, self._outside))
        exception = self._among.around(within)
        if not exception.inside() & self._inside:
            beyond = self._outside & ~exception.inside()
            least = exception.needed(self._inside, reversed(exception.values))
            return f"{self._said(self._shortest(box, beyond))} and not ({self._said(least)})"
        return " or ".join(dict.fromkeys(map(self._said, self._boxes(self._inside))))

    def _boxes(self, inside: int) -> Iterator[Box]:
        """Boxes that hold all that is inside and nothing that is outside: one if it can be, else along an axis."""
        box = self._among.around(inside)
        if not box.inside() & self._outside:
            yield self._shortest(box, self._outside)
            return
        # A case alone is a box without others: as long as a box has some, there is an axis to split it along.
        axis = min((axis for axis in box.values if len(box.values[axis]) > 1), key=lambda axis: len(box.values[axis]))
        for value in box.values[axis]:
            yield from self._boxes(inside & self._among.having[axis][value])

    def _shortest(self, box: Box, others: int) -> Box:
        """The box without the axes that keep nothing out, the last axes first: those are sizes, and say least."""
        return box.needed(others, [axis for axis in reversed(box.values) if axis not in self._anchors])

    def _said(self, box: Box) -> str:
        return " and ".join(str(self._term(box, axis)) for axis in box.values)

    def _term(self, box: Box, axis: str) -> Term:
        """By the values that it has, or where these are many, by the few that it has not."""
        few = axis in self._anchors or len(box.values[axis]) < 3
        return Term(axis=axis, values=box.values[axis], others=[] if few else box.others(axis))


def _shared(inside: Sequence[Point], outside: Sequence[Point]) -> list[str]:
    """The axes, sizes apart, that have one value in all cases of the layers that are inside."""
    layers = {(point["provider"], point["api"]) for point in inside}
    alike = [point for point in (*inside, *outside) if (point["provider"], point["api"]) in layers]
    shared = [axis for axis in AXES if axis not in _SIZES and len({point[axis] for point in alike}) == 1]
    return [axis for axis in shared if axis in _TOLD or inside[0][axis] != DEFAULTS.get(axis)]
