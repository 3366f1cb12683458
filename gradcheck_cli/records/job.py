"""What does a worker need to run a case?"""

from __future__ import annotations

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.rounding import Rounding


class Job(Record, frozen=True, kw_only=True):
    """A case, what builds it, and how its bounds are computed.

    A worker is keyed by device and `environment`: variables that must be set before the library is imported.
    """

    schema: int = SCHEMA_VERSION
    case: Case
    target: str  # "module:attribute" of the provider's entry point
    environment: dict[str, str] = {}
    ranks: int = 1
    attempt: int = 1
    rounding: dict[Role, Rounding] = {}
    mutants: list[str] = []  # by name, as `battery.py` has them
