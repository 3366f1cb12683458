"""How does one run go, from its first case to its report? Whatever was judged is told, however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.judge.conclude import conclude, excluded, untested
from gradcheck_cli.judge.known import Known, whole
from gradcheck_cli.judge.public import PublicRecord
from gradcheck_cli.matrices.matrix import Excluded
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import coverage, together
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.known import KnownFailure, Placed
from gradcheck_cli.records.report import Report, Run, exit_code, gravest_code, in_order, tally
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.workers.executor import Executor

_CUT_OFF = "expected a verdict after the case was started; the run was cut off here, or gradcheck itself failed on it"


def _any_will_do(_: Environment) -> None:
    """Of a run that begins: it may stand anywhere."""


class Plan(NamedTuple):
    """What there is to do, and what was done before by a run that goes on."""

    cases: Sequence[str]  # every id that was asked for, in the order of the matrix
    jobs: Sequence[Job]  # of those that are left
    excluded: Sequence[Excluded] = ()  # that are left
    maxfail: int = 0
    before: Sequence[Placed] = ()
    seconds: float = 0.0
    require: Callable[[Environment], None] = _any_will_do  # raises where a worker stands where none may


class Session:
    """One run: what was judged so far, and how it ended."""

    def __init__(
        self,
        plan: Plan,
        reporter: Reporter,
        executor: Executor,
        entries: Sequence[KnownFailure] = (),
        record: PublicRecord | None = None,
    ) -> None:
        self.plan = plan
        self.reporter = reporter
        self.executor = executor
        self.environment = plan.before[-1].environment if plan.before else Environment()
        self.started: set[Case] = set()
        self.verdicts: list[Verdict] = []
        self.known = Known(entries)
        self.record = record or PublicRecord()
        self.placed: list[Placed] = list(plan.before)

    def run(self, asked: Run) -> int:
        """Execute until the end, Ctrl-C or a failure of the harness: whatever was judged by then is reported."""
        clock = time.monotonic()
        self.reporter.opened(asked, [str(job.case) for job in self.plan.jobs])
        interrupted, failure = False, None
        try:
            self._execute()
        except KeyboardInterrupt:
            interrupted = True
        except GradcheckError as error:
            if not self.verdicts:
                raise
            failure = error
        report = self._report(asked, interrupted, failure, time.monotonic() - clock)
        try:
            self.reporter.closed(report)
        except GradcheckError as error:
            failure = failure or error  # the first is the cause, as of a disk that is full
        if failure:
            raise failure
        return report.exit_code

    def _report(self, asked: Run, interrupted: bool, failure: GradcheckError | None, seconds: float) -> Report:  # noqa: FBT001
        before = [self._marked(placed) for placed in self.plan.before]
        verdicts = in_order([*before, *self.verdicts, *self._never_run()], self.plan.cases)
        today = datetime.now(timezone.utc).date()
        reproduced = self.record.told(self.placed)
        complaints = self.known.complaints(self.placed, whole=whole(asked, verdicts), today=today)
        code = exit_code(
            verdicts,
            asked.min_executed,
            interrupted=interrupted,
            harness_failed=False,
            complaints=complaints,
            reproduced=reproduced,
        )
        return Report(
            run=asked,
            environment=self.environment,
            tally=tally(verdicts),
            coverage=coverage(verdicts),
            pairs=together(verdicts),
            verdicts=verdicts,
            seconds=self.plan.seconds + seconds,
            exit_code=gravest_code([code, *([failure.exit_code] if failure else [])]),
            complaints=complaints,
            reproduced=reproduced,
        )

    def _execute(self) -> None:
        for verdict in self._verdicts():
            self.verdicts.append(verdict)
            self.reporter.finished(verdict)
            if 0 < self.plan.maxfail <= sum(not one.green for one in self.verdicts):
                return

    def _verdicts(self) -> Iterator[Verdict]:
        for point in self.plan.excluded:
            yield excluded(point.case, point.constraint, point.why)
        for asked, seen in self.executor.run(self.plan.jobs, self._started, self._ready):
            self.reporter.observed(seen)
            verdict = conclude(asked.case, seen, self.environment)
            self.placed.append(Placed(case=asked.case, verdict=verdict, environment=self.environment))
            yield self._marked(self.placed[-1])

    def _marked(self, placed: Placed) -> Verdict:
        return self.record.marked(placed, self.known.marked(placed))

    def _started(self, asked: Job) -> None:
        self.started.add(asked.case)
        self.reporter.started(asked.case)

    def _ready(self, environment: Environment) -> None:
        self.plan.require(environment)
        self.environment = environment
        self.reporter.environment(environment)

    def _never_run(self) -> list[Verdict]:
        judged = {verdict.case for verdict in self.verdicts}
        left = [job.case for job in self.plan.jobs if str(job.case) not in judged]
        return [untested(case, _CUT_OFF) if case in self.started else untested(case) for case in left]
