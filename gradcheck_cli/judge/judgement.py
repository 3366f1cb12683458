"""What is concluded of one slot, before slots are grouped into findings?"""

from __future__ import annotations

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.verdict import Outcome


class Judgement(Record, frozen=True, kw_only=True):
    """One opinion about one slot after one phase."""

    outcome: Outcome
    why: str
    diagnosis: str = ""
    ratio: float | None = None
    after_rounding: float | None = None
    smallest_lambda: float | None = None  # by which the worst of several is chosen
