"""What do the failures of a run have in common? Rules over the axes of its cases."""

from __future__ import annotations

import re

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure, failure_of, named
from gradcheck_cli.records.report import Run
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict


class Term(Record, frozen=True, kw_only=True):
    """One condition of a rule: the axis has one of these values, in the order in which the run had them."""

    axis: str
    values: list[str | int]
    others: list[str | int] = []  # that the run had as well: where they are fewer, they are what is told

    @property
    def length(self) -> int:
        """How many values must be named to tell it."""
        return len(self.told)

    @property
    def told(self) -> list[str | int]:
        """The values that are named to tell it: those that it has not, where they are fewer."""
        return self.others if self.others and len(self.others) < len(self.values) else self.values

    def __str__(self) -> str:
        """`dtype in (bf16, fp16)`: as `-k` takes it."""
        negated = self.told is self.others
        values = [_quoted(value) for value in self.told]
        if len(values) == 1:
            return f"{self.axis}{'!=' if negated else '='}{values[0]}"
        return f"{self.axis} {'not in' if negated else 'in'} ({', '.join(values)})"


def _quoted(value: str | int) -> str:
    """A list of splits in quotes: its commas would be taken for those between values."""
    return str(value) if re.fullmatch(r"[\w.+-]+", str(value)) else f'"{value}"'


class Nearest(Record, frozen=True, kw_only=True):
    """A case that passed and differs on one axis from one that failed."""

    case: str  # the id of the one that passed
    beside: str  # the id of the one that failed
    axis: str
    failing: str | int
    passing: str | int


class Rule(Record, frozen=True, kw_only=True):
    """Which cases show one fault: all that meet every term, and where `exact` no other.

    A rule without terms and with exceptions is none: it lists the cases that no rule covers. Without either, every
    case shows the fault. Counted are the cases that came to the point where the fault could show.
    """

    role: str  # fprop, dgrad, wgrad or bgrad; "case" where the fault is one of the whole case
    outcome: Outcome
    diagnosis: str  # with # for an expert, token or row in which cases differ; "none or untouched" where it is both
    message: str = ""  # of an exception: where it was raised, and what it says, with # for numbers
    terms: list[Term]
    failing: int  # of the cases that meet every term
    of: int
    elsewhere: int  # that show the same fault, of the other cases
    elsewhere_of: int
    exceptions: list[str] = []  # cases of the fault that no rule covers, by id
    example: str  # the simplest case that it speaks of: with the fewest axes that are not the default
    nearest: Nearest | None = None

    def shown_by(self, verdict: Verdict) -> Finding | None:
        """What a case has of the fault that the rule is about; None where it has nothing of that gradient and outcome.

        Of several it is the one with the rule's diagnosis and words; the first, where they were cleared of names.
        """
        alike = [one for one in verdict.findings if (one.role, one.outcome) == (self.role, self.outcome)]
        return next((one for one in alike if self._is_of(failure_of(one))), alike[0] if alike else None)

    def _is_of(self, failure: Failure) -> bool:
        name = named(failure.diagnosis)
        alike = name == named(self.diagnosis) or name in self.diagnosis.split(" or ")
        return alike and failure.said == self.message

    def holds(self, verdict: Verdict) -> bool:
        """Whether a case is one that it speaks of: it meets every term, or is one that no rule covers."""
        if self.exceptions:
            return verdict.case in self.exceptions
        return all(verdict.every_axis.get(term.axis, "") in term.values for term in self.terms)

    @property
    def found(self) -> bool:
        """Whether it is a rule at all."""
        return not self.exceptions

    @property
    def exact(self) -> bool:
        """Whether the terms hold if and only if the fault shows."""
        return self.found and not self.elsewhere


class Explanation(Record, frozen=True, kw_only=True):
    """The rules behind a run's failures, and how many cases they speak of."""

    schema: int = SCHEMA_VERSION
    run: Run
    environment: Environment
    asked: int
    executed: int
    failing: int  # cases that are not green
    never_run: int  # of them those of which nothing was seen: no rule speaks of these
    rules: list[Rule]
    always: dict[str, str | int] = {}  # axis -> the one value that every executed case has, where it is not the default
