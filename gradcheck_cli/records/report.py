"""What is said of a whole run?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.coverage import Covered, Pairs
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.known import Complaint
from gradcheck_cli.records.public import Reproduced
from gradcheck_cli.records.verdict import Outcome, Verdict


class Tally(Record, frozen=True, kw_only=True):
    """A run states what it executed out of what was asked; EXCLUDED was not asked, REFUSED was not executed."""

    asked: int
    executed: int
    outcomes: dict[str, int]

    @property
    def share(self) -> float:
        """Executed out of asked; 0 where nothing was asked."""
        return self.executed / self.asked if self.asked else 0.0


def tally(verdicts: list[Verdict]) -> Tally:
    """Count verdicts; the counts sum to the number of verdicts."""
    outcomes: dict[str, int] = {}
    for verdict in verdicts:
        outcomes[verdict.outcome.value] = outcomes.get(verdict.outcome.value, 0) + 1
    asked = sum(verdict.outcome is not Outcome.EXCLUDED for verdict in verdicts)
    executed = sum(verdict.outcome.executed for verdict in verdicts)
    order = {outcome.value: outcome.gravity for outcome in Outcome}
    return Tally(asked=asked, executed=executed, outcomes=dict(sorted(outcomes.items(), key=lambda kv: order[kv[0]])))


class Run(Record, frozen=True, kw_only=True):
    """What was asked: written first into the journal."""

    schema: int = SCHEMA_VERSION
    gradcheck: str  # version
    command: list[str]
    started: str  # ISO 8601, UTC
    matrix: str
    provider: list[str]
    chosen_because: str = ""  # of --provider auto, in words
    options: dict[str, str] = {}  # GRADCHECK_* variables and options that differ from their defaults
    min_executed: float = 0.5
    seed: int = 0


class Report(Record, frozen=True, kw_only=True):
    """A finished run: everything a reporter may render."""

    schema: int = SCHEMA_VERSION
    run: Run
    environment: Environment
    tally: Tally
    verdicts: list[Verdict]
    seconds: float
    exit_code: int
    complaints: list[Complaint] = []  # what of the known failures is no longer true
    coverage: list[Covered] = []  # how much of each axis value was executed
    pairs: Pairs = Pairs()  # and of each two values
    reproduced: list[Reproduced] = []  # of the matrix of public reports, what became of each

    @property
    def floor_met(self) -> bool:
        """Whether something was executed, and at least the share that the gate demands."""
        return self.tally.executed > 0 and self.tally.share >= self.run.min_executed


# Where several apply, the first of these.
EXIT_CODES = (130, 2, 3, 1, 4, 5, 0)


def gravest_code(codes: Iterable[int]) -> int:
    """The exit code of several runs."""
    return min(codes, key=EXIT_CODES.index)


def exit_code(
    verdicts: list[Verdict],
    floor: float,
    *,
    interrupted: bool,
    harness_failed: bool,
    complaints: Sequence[Complaint] = (),
    reproduced: Sequence[Reproduced] = (),
) -> int:
    """The process's exit code; where several apply, the first of 130, 3, 1, 4, 5.

    A public report that did not come out as recorded is a finding, also where its cases passed.

    A case that fails in another way than the entry says that covers it is the entry's matter, and so 4.
    """
    counted = tally(verdicts)
    covered = {case for complaint in complaints for case in complaint.cases}
    if interrupted:
        return 130
    if harness_failed:
        return 3
    if any(not verdict.green and verdict.case not in covered for verdict in verdicts):
        return 1
    if not all(one.as_recorded for one in reproduced):
        return 1
    if complaints:
        return 4
    return 0 if counted.executed and counted.share >= floor else 5


def in_order(verdicts: Sequence[Verdict], cases: Sequence[str]) -> list[Verdict]:
    """The same, those of `cases` in that order, whichever came to its end first; others stay in their places."""
    place = {case: number for number, case in enumerate(cases)}
    ordered = iter(sorted((one for one in verdicts if one.case in place), key=lambda one: place[one.case]))
    return [next(ordered) if one.case in place else one for one in verdicts]


class Settings(Record, frozen=True, kw_only=True):
    """What decides which cases a run has and how each is judged: a run that is resumed must have the same."""

    gradcheck: str  # its version and what its sources are, so that a version in development is told from another
    matrix: str = "core"
    provider: list[str] = []
    expression: str = ""
    case: list[str] = []
    shard: str = ""
    seed: int = 0
    timeout: float = 60.0
    min_executed: float = 0.5
    mutants: str = "fast"
    known: str = ""
    stress: bool = False


class Started(Record, frozen=True, kw_only=True, tag="started", tag_field="event"):
    """Journal: a case is about to run."""

    schema: int = SCHEMA_VERSION
    case: str
    axes: dict[str, str | int]


class Finished(Record, frozen=True, kw_only=True, tag="verdict", tag_field="event"):
    """Journal: a case was judged."""

    schema: int = SCHEMA_VERSION
    verdict: Verdict


class Opened(Record, frozen=True, kw_only=True, tag="run", tag_field="event"):
    """Journal: the first line."""

    schema: int = SCHEMA_VERSION
    run: Run
    cases: list[str] = []  # the ids that were asked for: what a run that was killed must be measured against
    settings: Settings | None = None  # None in a journal that an older gradcheck wrote


class Resumed(Record, frozen=True, kw_only=True, tag="resumed", tag_field="event"):
    """Journal: a run that had ended early goes on."""

    schema: int = SCHEMA_VERSION
    at: str  # ISO 8601, UTC
    judged: int  # cases that had their verdict
    in_flight: list[str] = []  # cases that were started and had none


class Seen(Record, frozen=True, kw_only=True, tag="environment", tag_field="event"):
    """Journal: a worker came up and said where it is."""

    schema: int = SCHEMA_VERSION
    environment: Environment


class Closed(Record, frozen=True, kw_only=True, tag="closed", tag_field="event"):
    """Journal: the last line of a run that came to its end."""

    schema: int = SCHEMA_VERSION
    seconds: float
    exit_code: int
    interrupted: bool = False


JournalLine = Opened | Resumed | Seen | Started | Finished | Closed
