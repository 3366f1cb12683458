"""Is an archive as it was written? What was compared, and what differs."""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record


class Difference(Record, frozen=True, kw_only=True):
    """A file that is not as its hash says."""

    name: str
    kind: Literal["altered", "missing", "added"]
    why: str  # what was expected, what was found


class Verified(Record, frozen=True, kw_only=True):
    """What comparing every hash came to."""

    files: int  # that have one
    differences: list[Difference]
