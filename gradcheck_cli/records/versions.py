"""What do several versions of Transformer Engine make of the same cases?"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.report import Run, Tally
from gradcheck_cli.records.verdict import Outcome, Verdict


class Result(Record, frozen=True, kw_only=True):
    """What one version made of a case."""

    outcome: Outcome
    faults: list[str] = []  # `wgrad MISSING (none)`: every failure behind it


class Side(Record, frozen=True, kw_only=True):
    """One version and its run, which lies in the folder of that name."""

    version: str
    exit_code: int | None = None  # None where it was not run
    failure: str = ""  # why it was not run, or not to its end
    tally: Tally | None = None  # None where it left no report
    environment: Environment = Environment()


class Row(Record, frozen=True, kw_only=True):
    """A case that is not the same under every version."""

    case: str
    axes: dict[str, str | int]
    results: dict[str, Result]  # by version; a version that left no report has none


class Versions(Record, frozen=True, kw_only=True):
    """One matrix under several versions: `versions.json`."""

    schema: int = SCHEMA_VERSION
    run: Run  # what was asked, of each
    sides: list[Side]  # the oldest version first
    rows: list[Row]
    same: dict[str, int]  # outcome -> cases that are the same under every version that left a report
    exit_code: int  # the gravest of all runs


# What became of one case from a version to a later one.
Kind = Literal["broke", "mended", "closed", "opened", "changed"]
KINDS: dict[Kind, str] = {
    "broke": "was right, and is wrong",
    "mended": "was wrong, and is right",
    "closed": "ran, and is refused",
    "opened": "was refused, and runs",
    "changed": "is wrong in another way",
}


class Tried(Record, frozen=True, kw_only=True):
    """A case under one version."""

    version: str
    verdict: Verdict
    environment: Environment


class Change(Record, frozen=True, kw_only=True):
    """Between which two versions something changed."""

    kind: Kind
    old: str  # the last version as it was
    new: str  # the first version as it is
    refused: list[str] = []  # versions between the two: they refuse the case, and tell neither right nor wrong


class Bisection(Record, frozen=True, kw_only=True):
    """Between which versions a case changed, and what was run to find that out."""

    schema: int = SCHEMA_VERSION
    gradcheck: str  # version
    case: str
    versions: list[str]  # the oldest first
    tried: list[Tried]  # in the order in which they were run
    changes: list[Change]  # the oldest first
    not_run: list[str]  # each lies between two versions of one result
    seconds: float
