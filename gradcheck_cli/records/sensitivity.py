"""What does the oracle see? Counts of faults put in and seen, by channel, and the smallest errors that were seen."""

from __future__ import annotations

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.dtype import DtypeName
from gradcheck_cli.records.observation import Fill
from gradcheck_cli.records.verdict import Outcome


class Seen(Record, frozen=True, kw_only=True):
    """How often one fault was put into what a right layer had done, and how often it was judged as it deserves."""

    fault: str
    cites: str
    summary: str
    killed: dict[Fill, int] = {}
    of: dict[Fill, int] = {}


class Smallest(Record, frozen=True, kw_only=True):
    """Relative errors of one gradient, in unit roundoffs of the dtype, that were seen from there on: over all cases."""

    dtype: DtypeName
    fill: Fill
    best: int  # in the case that saw the smallest
    worst: int  # in the case that saw least
    cases: int
    blind: int = 0  # cases in which no step of the ladder was seen


class Ended(Record, frozen=True, kw_only=True):
    """What became of a layer that does not come back, and of a right one that was asked for next."""

    ending: str
    summary: str
    deserves: Outcome
    outcome: Outcome
    after: Outcome  # of the right layer

    @property
    def seen(self) -> bool:
        """Whether it was told for what it is, and nobody else suffered from it."""
        return self.outcome is self.deserves and self.after is Outcome.PASSED


class Sensitivity(Record, frozen=True, kw_only=True):
    """What a self-test found on one machine."""

    cases: int  # that came to their end
    passed: int
    ended_early: int = 0  # the layer raised, or its process died: there was nothing to put a fault into
    killed: int
    of: int
    survived: list[str]  # "mutant in case"
    seen: list[Seen]
    smallest: list[Smallest]
    endings: list[Ended] = []
    seconds: float = 0.0

    @property
    def sees(self) -> bool:
        """Whether a green run on this machine means something: every case passed, every required fault was seen."""
        every = self.cases > 0 and self.passed == self.cases and not self.survived
        return every and all(one.seen for one in self.endings)
