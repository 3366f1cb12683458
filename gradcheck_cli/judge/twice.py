"""Is it the case, or what ran before it? One that cost its worker is tried once more, in a fresh one."""

from __future__ import annotations

import msgspec

from gradcheck_cli.records.failure import worst_failure
from gradcheck_cli.records.verdict import Verdict

_TRIED = "cost its worker, and was tried once more in a fresh one"


def twice(first: Verdict, second: Verdict) -> Verdict:
    """The first verdict, and whether the second try says the same; a green first one does not cover a red second."""
    told = second if first.green and not second.green else first
    same = _kind(first) == _kind(second)
    note = f"{_TRIED}: {'the same again' if same else f'{second.outcome.value} there, so that it is not reproduced'}"
    return msgspec.structs.replace(
        told, retried=second.outcome, reproduced=same, notes=[*told.notes, note], seconds=first.seconds
    )


def _kind(verdict: Verdict) -> object:
    failure = worst_failure(verdict)
    return failure.key if failure else verdict.outcome
