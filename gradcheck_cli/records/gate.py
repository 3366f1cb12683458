"""What is a gate?"""

from __future__ import annotations

from gradcheck_cli.records.base import Record


class Gate(Record, frozen=True, kw_only=True):
    """Something that closes a case, or a path to it: what it is here, and what would open it."""

    name: str  # version, dtype, architecture, cublas, path, torch
    found: str
    unlock: str
    microbatch: int = 0  # the first that it closes
