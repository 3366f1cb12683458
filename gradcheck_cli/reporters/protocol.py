"""What does a reporter hear, and in which order?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.records.verdict import Verdict


class Reporter(Protocol):
    """Hears a run from the beginning to the end; computes nothing that is not in the records.

    The order is opened, then for each case started, observed, finished (a case that never ran is only finished; an
    EXCLUDED one always), environment whenever a worker comes up, closed where there is a report, and stop always.
    """

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """A run begins; `cases` are the ids that were asked for, EXCLUDED ones not among them."""

    def environment(self, environment: Environment) -> None:
        """A worker came up and said where it is."""

    def started(self, case: Case) -> None:
        """A case is about to run."""

    def observed(self, observation: Observation) -> None:
        """The worker answered, or its silence was put into words."""

    def finished(self, verdict: Verdict) -> None:
        """A case was judged."""

    def closed(self, report: Report) -> None:
        """The run came to its end, or was interrupted in good order."""

    def stop(self) -> None:
        """Give back the terminal and the files: last and always, even after an exception; twice is harmless."""


class Silent:
    """Hears everything and says nothing: the base of a reporter that only wants to hear some of it."""

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """Say nothing."""

    def environment(self, environment: Environment) -> None:
        """Say nothing."""

    def started(self, case: Case) -> None:
        """Say nothing."""

    def observed(self, observation: Observation) -> None:
        """Say nothing."""

    def finished(self, verdict: Verdict) -> None:
        """Say nothing."""

    def closed(self, report: Report) -> None:
        """Say nothing."""

    def stop(self) -> None:
        """Hold nothing."""
