"""In which order do the stages run? Select, execute, judge, tell: and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import count, islice
from pathlib import Path

from gradcheck_cli import __version__, installed, plugins, selection
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.judge import bounds
from gradcheck_cli.judge.conclude import conclude, excluded, untested
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.report import Report, Run, exit_code, tally
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.formats import of_run, render
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.reporters.read import read
from gradcheck_cli.workers.executor import LocalExecutor


class RunOptions(Record, frozen=True, kw_only=True):
    """How to run what was selected."""

    asked: selection.Asked
    last_failed: Path | None = None
    maxfail: int = 0
    timeout: float = 60.0
    output: Path | None = None
    formats: tuple[str, ...] = ("table",)
    min_executed: float = 0.5
    quiet: bool = False
    command: tuple[str, ...] = ()
    options: dict[str, str] = {}


def run(options: RunOptions) -> int:
    """Enumerate, execute, judge, report; the exit code. Raises what ends a run before it began."""
    among = not_green(read(options.last_failed)) if options.last_failed else None
    selected = selection.select(options.asked, among)
    installed.require(selected.candidates, selected.device)
    began = datetime.now(timezone.utc)
    folder = options.output or default_folder(began, selected)
    reporter = of_run(options.formats, folder, open_console(), quiet=options.quiet)
    try:
        return Session(options, selected, folder, reporter).run(began)
    finally:
        reporter.stop()


def render_again(folder: Path, formats: tuple[str, ...]) -> None:
    """A finished run in any format: the table onto the console, files into its folder."""
    render(read(folder), formats, folder, open_console())


def default_folder(began: datetime, selected: selection.Selection) -> Path:
    """`reports/<time>-<provider>`; two runs that begin in the same second get two folders."""
    names = "-".join(candidate.name for candidate in selected.candidates)
    base = Path("reports", f"{began:%Y%m%d-%H%M%S}-{names}")
    others = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(folder for folder in (base, *islice(others, 98)) if not folder.exists())


class Session:
    """One run: what was judged so far, and how it ended."""

    def __init__(self, options: RunOptions, selected: selection.Selection, folder: Path, reporter: Reporter) -> None:
        self.options = options
        self.selected = selected
        self.folder = folder
        self.reporter = reporter
        self.environment = Environment()
        self.verdicts: list[Verdict] = []

    def run(self, began: datetime) -> int:
        """Execute until the end, Ctrl-C or a failure of the harness: whatever was judged by then is reported."""
        clock = time.monotonic()
        asked = self._asked(began)
        self.reporter.opened(asked, [str(case) for case in self.selected.cases])
        interrupted, failure = False, None
        try:
            for verdict in self._verdicts():
                self.verdicts.append(verdict)
                self.reporter.finished(verdict)
                if 0 < self.options.maxfail <= sum(not one.outcome.green for one in self.verdicts):
                    break
        except KeyboardInterrupt:
            interrupted = True
        except HarnessError as error:
            failure = error
        verdicts = [*self.verdicts, *self._never_run()]
        report = Report(
            run=asked,
            environment=self.environment,
            tally=tally(verdicts),
            verdicts=verdicts,
            seconds=time.monotonic() - clock,
            exit_code=exit_code(
                verdicts, self.options.min_executed, interrupted=interrupted, harness_failed=failure is not None
            ),
        )
        self.reporter.closed(report)
        if failure:
            raise failure
        return report.exit_code

    def _verdicts(self) -> Iterator[Verdict]:
        for point in self.selected.excluded:
            yield excluded(point.case, point.constraint, point.why)
        with LocalExecutor(device=self.selected.device, log_dir=self.folder, timeout=self.options.timeout) as executor:
            jobs = [job(case) for case in self.selected.cases]
            for asked, seen in executor.run(jobs, self._started, self._ready):
                self.reporter.observed(seen)
                yield conclude(asked.case, seen, self.environment)

    def _started(self, asked: Job) -> None:
        self.reporter.started(asked.case)

    def _ready(self, environment: Environment) -> None:
        self.environment = environment
        self.reporter.environment(environment)

    def _never_run(self) -> list[Verdict]:
        judged = {verdict.case for verdict in self.verdicts}
        return [untested(case) for case in self.selected.cases if str(case) not in judged]

    def _asked(self, began: datetime) -> Run:
        return Run(
            gradcheck=__version__,
            command=list(self.options.command),
            started=began.isoformat(timespec="seconds"),
            matrix="" if self.options.asked.case else self.options.asked.matrix,
            provider=[candidate.name for candidate in self.selected.candidates],
            chosen_because=self.selected.chosen_because,
            options=self.options.options,
            min_executed=self.options.min_executed,
            seed=self.options.asked.seed,
        )


def job(case: Case) -> Job:
    """What a worker needs to run a case: who builds it, under which variables, and the coefficients of its bounds."""
    candidate = plugins.candidate(case.provider)
    return Job(
        case=case,
        target=plugins.target(case.provider, case.api),
        environment=candidate.environment,
        rounding=bounds.rounding(case, candidate),
    )


def not_green(report: Report) -> frozenset[str]:
    """The ids of a report's cases that a gate would not let pass."""
    return frozenset(verdict.case for verdict in report.verdicts if not verdict.outcome.green)
