"""When do two cases fail alike? Same outcome, same gradient, same diagnosis, and of an exception the same words.

A factor, an exit code and a signal are part of what a fault is. Which expert, token or row it meets, and the sizes in a
message, follow from the case, and # stands for each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gradcheck_cli.records.verdict import Finding, Outcome, Verdict

# Where in the gradient, in the words of `judge/diagnosis.py`.
_PLACE = re.compile(r"\b(expert|token|microbatch|shifted by|last) [-+]?\d+\b")
_FACTOR = re.compile(r"(?<=\bscaled by )\S+")
# Of a factor's digits as many as every dtype tells: it is one fault in float32 and in bfloat16.
_DIGITS = 3
# An address, or a number that is no part of a name, as in float32.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])[-+]?\d[\d.]*(?:e[-+]?\d+)?")

# The folders of a path: where something was built or installed differs from machine to machine.
_FOLDERS = re.compile(r"(?<![\w./])/(?:[\w.+@-]+/)+")


class Failure(NamedTuple):
    """What went wrong with which gradient; `role` is "case" where it is about the whole case."""

    role: str
    outcome: Outcome
    diagnosis: str
    message: str = ""  # of an exception: its type alone says too little

    @property
    def key(self) -> tuple[str, Outcome, str, str, str]:
        """What two failures share that are alike: for comparing, and not to be told."""
        during, words = _raised(self.diagnosis, self.message)
        return self.role, self.outcome, named(self.diagnosis), during, worded(words)

    @property
    def said(self) -> str:
        """`backward: expected # rows`: where an exception was raised, and its words; "" where it has none."""
        *_, during, words = self.key
        return f"{during}: {words}" if during and words else words

    def __str__(self) -> str:
        named = f" ({self.diagnosis})" if self.diagnosis else ""
        return f"{self.role} {self.outcome.value}{named}"


def named(diagnosis: str) -> str:
    """A diagnosis as it is for every case with this fault: `holds expert #`, and `scaled by 0.5`."""
    return _FACTOR.sub(_rounded, _PLACE.sub(r"\1 #", diagnosis))


def worded(message: str) -> str:
    """A message as it is for every case and on every machine: without numbers, addresses and folders."""
    return without_numbers(_FOLDERS.sub("", " ".join(message.split())))


def without_numbers(text: str) -> str:
    """A text with # for each number and address."""
    return _NUMBER.sub("#", text)


def _raised(kind: str, why: str) -> tuple[str, str]:
    """Where an exception was raised, and its words, of what `judge/effective.py` says; all of it where it says else."""
    _, known, said = why.partition(f"raised {kind} in ")
    during, _, words = said.partition(": ")
    return (re.split(r" of |, |:", during)[0], words) if known else ("", why)


def _rounded(factor: re.Match[str]) -> str:
    try:
        return f"{float(factor[0]):.{_DIGITS}g}"
    except ValueError:
        return factor[0]


def failure_of(finding: Finding) -> Failure:
    """A finding without its expert and its microbatch."""
    message = finding.why if finding.outcome is Outcome.RAISED else ""
    return Failure(finding.role, finding.outcome, finding.diagnosis, message)


def faults(verdict: Verdict) -> dict[object, str]:
    """What a case failed with: as it is compared, and as it is told.

    What random data shows of a gradient by the name that integers have for it is the same fault once more.
    """
    every = list(map(failure_of, verdict.red))
    by_integers = {(one.role, named(one.diagnosis)) for one in every if one.outcome is Outcome.INEXACT}
    return {
        one.key: f"{one}: {one.said}" if one.said else str(one)
        for one in every
        if one.outcome is not Outcome.INACCURATE or (one.role, named(one.diagnosis)) not in by_integers
    }


def worst_failure(verdict: Verdict, wanted: Failure | None = None) -> Failure | None:
    """The failure behind the outcome; None where it is green.

    Of several that are as grave, it is the one like the one that is wanted; the first where none is.
    """
    if verdict.outcome.green or verdict.worst is None:
        return None
    gravest = [failure_of(finding) for finding in verdict.findings if finding.outcome is verdict.worst.outcome]
    return next((one for one in gravest if wanted and one.key == wanted.key), gravest[0])
