"""What is the smallest case that fails alike, and how was it found?"""

from __future__ import annotations

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.verdict import Outcome


class Attempt(Record, frozen=True, kw_only=True):
    """One simpler case that was run."""

    case: str
    change: str  # `num_gemms 4 -> 2`
    outcome: Outcome
    diagnosis: str = ""
    kept: bool  # whether it failed alike
    seconds: float = 0.0


class Minimised(Record, frozen=True, kw_only=True):
    """The end of the search and its trail."""

    schema: int = SCHEMA_VERSION
    asked: str
    case: str  # the smallest that fails alike
    role: str
    outcome: Outcome
    diagnosis: str
    trail: list[Attempt]
    seconds: float
    stopped: str = ""  # why it stopped before nothing simpler was left to try
