"""What does a worker need to run a case?"""

from __future__ import annotations

from typing import NamedTuple

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.rounding import Rounding


class Variables(NamedTuple):
    """What is set before a library is imported: where the user has not set it, and whatever the user has set."""

    unless_set: dict[str, str] = {}
    always: dict[str, str] = {}


class Job(Record, frozen=True, kw_only=True):
    """A case, what builds it, and how its bounds are computed.

    A worker is keyed by device and `variables`.
    """

    schema: int = SCHEMA_VERSION
    case: Case
    target: str  # "module:attribute" of the provider's entry point
    environment: dict[str, str] = {}  # variables that the candidate needs, where the user has not set them
    switches: dict[str, str] = {}  # variables by which a case asks for what it asks for, whatever the user has set
    ranks: int = 1
    attempt: int = 1
    rounding: dict[Role, Rounding] = {}
    mutants: list[str] = []  # by name, as `battery.py` has them
    limit: float = 0.0  # seconds, in place of those of the run; 0: those

    @property
    def variables(self) -> Variables:
        """Those of its worker."""
        return Variables(self.environment, self.switches)
