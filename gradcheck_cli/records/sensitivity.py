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
    """Relative errors in unit roundoffs of the dtype, from which on they are seen: over all gradients of all cases."""

    dtype: DtypeName
    fill: Fill
    chain: bool = False  # of two layers with an activation between them, which rounds what the second is given
    best: int  # of the gradient of which the smallest is seen
    worst: int  # of the one of which least is seen
    gradients: int  # one for each role of each case
    blind: int = 0  # gradients of which not even the largest step of the ladder is seen


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

    asked: int
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
    def never_put_in(self) -> list[str]:
        """Faults that no case had a place for: of these nothing is known."""
        return [one.fault for one in self.seen if not sum(one.of.values())]

    @property
    def sees(self) -> bool:
        """Whether what was tried was seen: every required fault and every ending."""
        return not self.survived and all(one.seen for one in self.endings)

    @property
    def enough(self) -> bool:
        """Whether enough was tried for a green to mean something: every fault, in at least half of the cases."""
        return 2 * self.cases >= self.asked > 0 and not self.never_put_in

    @property
    def green(self) -> bool:
        """Whether a green run on this machine means something."""
        return self.sees and self.enough and self.passed == self.cases
