"""How is a run told to several reporters at once?"""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.protocol import Reporter


class Everyone:
    """Tells several reporters, in the order given."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

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
        """Tell everyone; one that cannot write does not silence the others, and is heard afterwards."""
        failures: list[GradcheckError] = []
        for reporter in self._reporters:
            try:
                reporter.closed(report)
            except GradcheckError as failure:  # noqa: PERF203 - each is asked, whatever the others say
                failures.append(failure)
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """Stop everyone."""
        for reporter in self._reporters:
            reporter.stop()
