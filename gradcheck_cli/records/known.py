"""What is a known failure, and what may a run hold against it?"""

from __future__ import annotations

from datetime import date
from typing import Literal

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.verdict import Outcome, Verdict

# What an entry may ask a version of, and the name under which an environment records it.
VERSIONED = {
    "transformer-engine": "transformer_engine",
    "torch": "torch",
    "cublas": "cublaslt",
    "cudnn": "cudnn",
    "cuda": "cuda",
    "driver": "driver",
}
CPU = "cpu"
# For the judge, which has no clock: it is told what day it is.
Day = date


class KnownFailure(Record, frozen=True, kw_only=True):
    """One entry of a known file: these cases fail in this way, here, until then, and somebody looks after it."""

    place: str  # "cases/known.toml, line 12"
    line: int
    expression: str  # as -k understands it
    outcome: Outcome
    link: str
    owner: str
    expires: date  # the last day on which it holds
    # What an entry leaves out, its failure does not have: it names one fault.
    role: Role | None = None  # None: of the whole case
    diagnosis: str = ""  # whatever expert, token or row it names
    message: str = ""  # of a RAISED: a part of what `Failure.said` tells of it
    versions: dict[str, str] = {}  # a name of VERSIONED -> PEP 440 specifier
    architecture: list[str] = []  # sm90, ..., or cpu; none: any
    note: str = ""

    @property
    def failure(self) -> str:
        """`MISSING wgrad (untouched)`."""
        named = f" ({self.diagnosis})" if self.diagnosis else ""
        return f"{self.outcome.value} {self.role or 'case'}{named}{f': {self.message}' if self.message else ''}"


class Placed(Record, frozen=True, kw_only=True):
    """A verdict, and where it was reached."""

    case: Case
    verdict: Verdict
    environment: Environment


class Complaint(Record, frozen=True, kw_only=True):
    """What of an entry is not true of a run: `why` says what was expected, what was found, and what to do.

    mended: a case passed. different: a case failed in another way. expired: its day is past. unmatched: no case of the
    run is one of its own.
    """

    place: str
    kind: Literal["mended", "different", "expired", "unmatched"]
    why: str
    cases: list[str] = []  # that are not as the entry says
