"""When do two cases fail alike? Same outcome, same gradient, same diagnosis, whatever the numbers in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from gradcheck_cli.records.verdict import Finding, Outcome, Verdict

# An address, or a number that is no part of a name, as in float32.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])[-+]?\d[\d.]*(?:e[-+]?\d+)?")


class Failure(NamedTuple):
    """What went wrong with which gradient; `role` is "case" where it is about the whole case."""

    role: str
    outcome: Outcome
    diagnosis: str
    message: str = ""  # of an exception: its type alone says too little

    @property
    def key(self) -> tuple[str, Outcome, str, str]:
        """What two failures share that are alike, whatever the numbers in them: for comparing, and not to be told."""
        return self.role, self.outcome, without_numbers(self.diagnosis), without_numbers(self.message)

    def __str__(self) -> str:
        named = f" ({self.diagnosis})" if self.diagnosis else ""
        return f"{self.role} {self.outcome.value}{named}"


def without_numbers(text: str) -> str:
    """A factor, an expert or a size differs from case to case while the fault is one: # stands for each."""
    return _NUMBER.sub("#", text)


def failure_of(finding: Finding) -> Failure:
    """A finding without its expert and its microbatch."""
    message = finding.why if finding.outcome is Outcome.RAISED else ""
    return Failure(finding.slot.partition("[")[0], finding.outcome, finding.diagnosis, message)


def worst_failure(verdict: Verdict) -> Failure | None:
    """The failure behind the outcome; None where it is green."""
    return None if verdict.outcome.green or verdict.worst is None else failure_of(verdict.worst)
