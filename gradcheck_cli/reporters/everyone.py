"""How is a run told to several reporters at once?"""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.reporters.standard_output import complain


class Everyone:
    """Tells several reporters, in the order given: first those that write files, then those that only print."""

    def __init__(self, writing: Sequence[Reporter], printing: Sequence[Reporter] = ()) -> None:
        self._writing = writing
        self._printing = printing
        self._reporters = (*writing, *printing)

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """Tell everyone."""
        for reporter in self._reporters:
            reporter.opened(run, cases)

    def environment(self, environment: Environment) -> None:
        """Tell everyone."""
        for reporter in self._reporters:
            reporter.environment(environment)

    def started(self, case: Case) -> None:
        """Tell everyone."""
        for reporter in self._reporters:
            reporter.started(case)

    def observed(self, observation: Observation) -> None:
        """Tell everyone."""
        for reporter in self._reporters:
            reporter.observed(observation)

    def finished(self, verdict: Verdict) -> None:
        """Tell everyone."""
        for reporter in self._reporters:
            reporter.finished(verdict)

    def closed(self, report: Report) -> None:
        """Tell everyone, whatever one of them raises; the first that could not write its file is heard afterwards.

        A table that cannot be printed changes nothing of a run whose files are there: it is only said.
        """
        unwritten = [failure for reporter in self._writing if (failure := _failure(reporter, report))]
        for failure in filter(None, [_failure(reporter, report) for reporter in self._printing]):
            complain(
                f"expected to print the report, found {type(failure).__name__}: {failure}; "
                f"its files are written all the same"
            )
        if unwritten:
            raise unwritten[0]

    def stop(self) -> None:
        """Stop everyone."""
        for reporter in self._reporters:
            reporter.stop()


def _failure(reporter: Reporter, report: Report) -> Exception | None:
    try:
        reporter.closed(report)
    except Exception as failure:  # noqa: BLE001 - each is asked, whatever the others raise
        return failure
    return None
