"""What is recorded of a gradient bug that somebody reported in public, and how did a run find it?"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.verdict import Outcome

# faulty: a layer, or what a right one left, with the fault of that report. sound: the right layer, called in the same
# way. upstream: the layer of the report itself, in the versions in which it was seen.
Part = Literal["faulty", "sound", "upstream"]
PARTS: tuple[Part, ...] = ("faulty", "sound", "upstream")
# unrecorded: nobody has seen it in this version or on this device.
State = Literal["as recorded", "otherwise", "not executed", "unrecorded"]


class Recorded(Record, frozen=True, kw_only=True):
    """How one case of a report comes out; what a finding is not said to have, it must not have."""

    case: str  # its id
    outcome: Outcome
    role: Role | None = None  # None: of the whole case
    diagnosis: str = ""  # whatever expert, token or row it names
    message: str = ""  # of a RAISED: a part of what it says
    mutants: list[str] = []  # faults put into what the case leaves, each of which must be noticed
    limit: float = 0.0  # seconds that the case may take; 0: those of the run
    versions: dict[str, str] = {}  # as in a known file: where the outcome was seen; {}: anywhere
    architecture: list[str] = []

    @property
    def part(self) -> Part:
        """Which of the three it is."""
        if self.case.startswith("faults:") or self.mutants:
            return "faulty"
        return "upstream" if self.versions else "sound"

    @property
    def said(self) -> str:
        """`MISSING wgrad (untouched)`, `seen: pgrad_missing`, `PASSED`."""
        if self.mutants:
            return f"seen: {', '.join(self.mutants)}"
        named = f" ({self.diagnosis})" if self.diagnosis else ""
        return f"{self.outcome.value}{f' {self.role}' if self.role else ''}{named}"


class PublicReport(Record, frozen=True, kw_only=True):
    """A public report, and the cases that show its fault; without one, why there is none."""

    name: str  # as CONTRIBUTING.md cites it, in small letters
    title: str  # its symptom
    links: list[str]
    hit: str  # versions that have it
    fixed: str = ""
    lacks: str = ""  # what of its trigger the faulty variant stands for without having it
    out_of_reach: str = ""  # why no case and no mutant can show it
    case: list[Recorded] = []


class CameOut(Record, frozen=True, kw_only=True):
    """One case of a report in a run."""

    part: Part
    case: str
    recorded: str
    found: str
    state: State


class Reproduced(Record, frozen=True, kw_only=True):
    """A public report in a run: its cases that were asked for."""

    name: str
    title: str
    link: str
    cases: list[CameOut]

    @property
    def as_recorded(self) -> bool:
        """Whether nothing of it came out otherwise."""
        return all(one.state != "otherwise" for one in self.cases)
