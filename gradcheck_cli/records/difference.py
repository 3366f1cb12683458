"""What changed between two runs? Case by case: verdicts, coverage, the path that ran, margins and time."""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.report import Run, Tally
from gradcheck_cli.records.verdict import Outcome

# Gravest first: a case that changed in several ways has a line for each, and a verdict that changed has one.
Kind = Literal["regression", "coverage lost", "mended", "coverage gained", "outcome", "path", "margin", "slower"]
KINDS: dict[Kind, str] = {
    "regression": "was green, and is red now; or one of its gradients was right, and is not now",
    "coverage lost": "was right, and is refused, excluded or absent now: nothing says any more that it is right",
    "mended": "was wrong, and is right now",
    "coverage gained": "was refused or excluded, and is right now",
    "outcome": "another outcome or another fault, neither time right",
    "path": "something else ran than before",
    "margin": "the error after output rounding is four times what it was, and 0.2 of its bound or more",
    "slower": "twice as slow, and 2 s or more slower",
}
ABSENT = "absent"  # what has become of a case that the new run should have and has not
REGRESSIONS: tuple[Kind, ...] = ("regression", "coverage lost")


class Change(Record, frozen=True, kw_only=True):
    """One thing that changed in one case."""

    kind: Kind
    case: str  # its id in the old run
    new_case: str = ""  # its id in the new run, where that is another
    axes: dict[str, str | int]
    role: str = ""  # of a margin
    old: str
    new: str
    roles: dict[str, tuple[Outcome, Outcome]] = {}  # the roles whose outcome changed
    why: str = ""  # of an outcome: what the new run says of it


class Side(Record, frozen=True, kw_only=True):
    """One of the two runs."""

    run: Run
    tally: Tally


class Difference(Record, frozen=True, kw_only=True):
    """All that changed from an old run to a new one."""

    schema: int = SCHEMA_VERSION
    old: Side
    new: Side
    environment: dict[str, tuple[str, str]]  # versions, device and variables that differ, "" where a run has none
    compared: int  # pairs of cases
    changes: list[Change]
    only_old: list[str]
    not_asked: str = ""  # why cases that were right and are in the old run alone are no coverage lost
    only_new: list[str]

    @property
    def regressed(self) -> bool:
        """Whether a gate must not let the new one pass."""
        return any(change.kind in REGRESSIONS for change in self.changes)
