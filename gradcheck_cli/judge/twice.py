"""Is it the case, or what ran before it? One that cost its worker is tried once more, in a fresh one."""

from __future__ import annotations

import msgspec

from gradcheck_cli.records.failure import worst_failure
from gradcheck_cli.records.verdict import Verdict

_TRIED = "cost its worker, and was tried once more in a fresh one"


def twice(first: Verdict, second: Verdict) -> Verdict:
    """The first verdict, and whether the second try says the same; a green first one does not cover a red second.

    An error of CUDA shows wherever somebody next waits for the device, and in the words of whoever does: what is
    reproduced is the outcome.
    """
    told = second if first.green and not second.green else first
    same = first.outcome is second.outcome
    note = f"{_TRIED}: {_said(first, second) if same else f'{second.outcome.value} there: it is not reproduced'}"
    return msgspec.structs.replace(
        told, retried=second.outcome, reproduced=same, notes=[*told.notes, note], seconds=first.seconds
    )


def _said(first: Verdict, second: Verdict) -> str:
    return "the same again" if _kind(first) == _kind(second) else f"{second.outcome.value} again, in other words"


def _kind(verdict: Verdict) -> object:
    failure = worst_failure(verdict)
    return failure.key if failure else verdict.outcome
