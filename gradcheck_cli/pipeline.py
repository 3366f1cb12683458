"""In which order do the stages run? Select, execute, judge, tell: and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import count, islice
from pathlib import Path

from gradcheck_cli import __version__, installed, known_file, plugins, selection
from gradcheck_cli.errors import GradcheckError, UsageError
from gradcheck_cli.judge import bounds
from gradcheck_cli.judge.conclude import conclude, excluded, untested
from gradcheck_cli.judge.known import Known, whole
from gradcheck_cli.judge.public import PublicRecord
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records import battery
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import coverage, together
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.known import Complaint, KnownFailure, Placed
from gradcheck_cli.records.report import Report, Run, exit_code, tally
from gradcheck_cli.records.stress import VARIABLES
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.formats import of_run, render
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.reporters.read import read
from gradcheck_cli.workers.executor import LocalExecutor


class RunOptions(Record, frozen=True, kw_only=True):
    """How to run what was selected."""

    device: str = ""
    last_failed: Path | None = None
    maxfail: int = 0
    timeout: float = 60.0
    output: Path | None = None
    formats: Sequence[str] = ("table",)
    min_executed: float = 0.5
    mutants: str = "fast"
    stress: bool = False
    quiet: bool = False
    known: str = ""


class Typed(Record, frozen=True, kw_only=True):
    """How it was asked for, recorded with the run: what was typed, and the variables that set options."""

    command: Sequence[str] = ()
    variables: dict[str, str] = {}


def run(asked: selection.Asked, options: RunOptions, typed: Typed) -> int:
    """Enumerate, execute, judge, report; the exit code. Raises what ends a run before it began."""
    asked, selected = prepared(asked, options)
    entries = known_file.load(options.known) if options.known else []
    device = installed.device(options.device)
    installed.require(selected.candidates, device, asked.te)
    began = datetime.now(timezone.utc)
    folder = options.output or default_folder(began, selected)
    reporter = of_run(options.formats, folder, open_console(), quiet=options.quiet)
    try:
        with LocalExecutor(device=device, log_dir=folder, timeout=options.timeout, te=asked.te, retry=True) as executor:
            record = PublicRecord(matrix.public_reports(asked.matrix))
            session = Session(selected, options, reporter, executor, entries, record)
            return session.run(opening(asked, selected, options, typed, began))
    finally:
        reporter.stop()


def prepared(asked: selection.Asked, options: RunOptions) -> tuple[selection.Asked, selection.Selection]:
    """What is asked, with --last-failed looked up, and the cases that this selects; UsageError for bad options."""
    if not (math.isfinite(options.timeout) and math.isfinite(options.min_executed)):
        raise UsageError("--timeout and --min-executed: expected a number; nan and inf are none")
    if options.mutants not in battery.MODES:
        raise UsageError(f"--mutants {options.mutants}: expected {' or '.join(battery.MODES)}")
    if options.output is not None and options.output.resolve() == Path.cwd():
        raise UsageError("--output: expected a folder for this run alone; found the current one, or an empty name")
    if options.last_failed:
        asked = selection.again(asked, read(options.last_failed).verdicts, options.last_failed)
    return asked, selection.select(asked)


def opening(
    asked: selection.Asked, selected: selection.Selection, options: RunOptions, typed: Typed, began: datetime
) -> Run:
    """What the first line of the journal says."""
    return Run(
        gradcheck=__version__,
        command=["gradcheck", *typed.command],
        started=began.isoformat(timespec="seconds"),
        matrix="" if asked.case else asked.matrix,
        provider=[candidate.name for candidate in selected.candidates],
        chosen_because=selected.chosen_because,
        options=typed.variables,
        min_executed=options.min_executed,
        seed=asked.seed,
    )


def render_again(folder: Path, formats: Sequence[str], output: Path | None) -> None:
    """A finished run in any format: the table onto the console, files into `output`, else into its folder."""
    render(read(folder), formats, folder, open_console(), output=output)


def default_folder(began: datetime, selected: selection.Selection) -> Path:
    """`reports/<time>-<provider>`; two runs that begin in the same second get two folders."""
    names = "-".join(candidate.name for candidate in selected.candidates)
    base = Path("reports", f"{began:%Y%m%d-%H%M%S}-{names}")
    others = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(folder for folder in (base, *islice(others, 98)) if not folder.exists())


class Session:
    """One run: what was judged so far, and how it ended."""

    def __init__(
        self,
        selected: selection.Selection,
        options: RunOptions,
        reporter: Reporter,
        executor: LocalExecutor,
        entries: Sequence[KnownFailure] = (),
        record: PublicRecord | None = None,
    ) -> None:
        self.selected = selected
        self.options = options
        self.reporter = reporter
        self.executor = executor
        self.environment = Environment()
        self.verdicts: list[Verdict] = []
        self.known = Known(entries)
        self.record = record or PublicRecord()
        self.placed: list[Placed] = []

    def run(self, asked: Run) -> int:
        """Execute until the end, Ctrl-C or a failure of the harness: whatever was judged by then is reported."""
        clock = time.monotonic()
        self.reporter.opened(asked, [str(case) for case in self.selected.cases])
        interrupted, failure = False, None
        try:
            self._execute()
        except KeyboardInterrupt:
            interrupted = True
        except GradcheckError as error:
            if not self.verdicts:
                raise
            failure = error
        verdicts = [*self.verdicts, *self._never_run()]
        complaints = self._complaints(asked, verdicts)
        reproduced = self.record.told(self.placed)
        code = exit_code(
            verdicts,
            asked.min_executed,
            interrupted=interrupted,
            harness_failed=failure is not None,
            complaints=complaints,
            reproduced=reproduced,
        )
        self.reporter.closed(
            Report(
                run=asked,
                environment=self.environment,
                tally=tally(verdicts),
                coverage=coverage(verdicts),
                pairs=together(verdicts),
                verdicts=verdicts,
                seconds=time.monotonic() - clock,
                exit_code=code,
                complaints=complaints,
                reproduced=reproduced,
            )
        )
        if failure:
            raise failure
        return code

    def _complaints(self, asked: Run, verdicts: list[Verdict]) -> list[Complaint]:
        today = datetime.now(timezone.utc).date()
        return self.known.complaints(self.placed, whole=whole(asked, verdicts), today=today)

    def _execute(self) -> None:
        for verdict in self._verdicts():
            self.verdicts.append(verdict)
            self.reporter.finished(verdict)
            if 0 < self.options.maxfail <= sum(not one.green for one in self.verdicts):
                return

    def _verdicts(self) -> Iterator[Verdict]:
        for point in self.selected.excluded:
            yield excluded(point.case, point.constraint, point.why)
        jobs = alike(
            [
                self.record.job(job(case, self.options.mutants, stress=self.options.stress))
                for case in self.selected.cases
            ]
        )
        for asked, seen in self.executor.run(jobs, self._started, self._ready):
            self.reporter.observed(seen)
            verdict = conclude(asked.case, seen, self.environment)
            self.placed.append(Placed(case=asked.case, verdict=verdict, environment=self.environment))
            yield self.record.marked(self.placed[-1], self.known.marked(self.placed[-1]))

    def _started(self, asked: Job) -> None:
        self.reporter.started(asked.case)

    def _ready(self, environment: Environment) -> None:
        self.environment = environment
        self.reporter.environment(environment)

    def _never_run(self) -> list[Verdict]:
        judged = {verdict.case for verdict in self.verdicts}
        return [untested(case) for case in self.selected.cases if str(case) not in judged]


def alike(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, those under the same variables together, in the order of the first of each: a worker for each."""
    first: dict[str, int] = {}
    return sorted(jobs, key=lambda one: first.setdefault(str(one.variables), len(first)))


def job(case: Case, mutants: str = "none", *, stress: bool = False) -> Job:
    """What a worker needs to run a case: who builds it, under which variables, and the coefficients of its bounds."""
    candidate = plugins.candidate(case.provider)
    return Job(
        case=case,
        target=plugins.target(case.provider, case.api),
        environment=candidate.environment,
        switches={**plugins.switches(case), **(VARIABLES if stress else {})},
        rounding=bounds.rounding(case, candidate),
        mutants=battery.needed(mutants, case),
    )
