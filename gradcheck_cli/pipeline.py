"""In which order do the stages run? Select, execute, judge, tell: and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from itertools import count, islice
from pathlib import Path

import msgspec

from gradcheck_cli import __version__, known_file, placing, plugins, resuming, selection
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge import bounds
from gradcheck_cli.judge.public import PublicRecord
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records import battery
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.report import Run, Settings
from gradcheck_cli.records.stress import VARIABLES
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.formats import known_formats, new_files, of_run, render
from gradcheck_cli.reporters.read import read
from gradcheck_cli.session import Plan, Session
from gradcheck_cli.workers.strays import kill_marked, of_folder

_OF_ASKED = ("matrix", "provider", "expression", "case", "shard", "seed")
_OF_OPTIONS = ("timeout", "min_executed", "mutants", "known", "stress")


class RunOptions(placing.Placing, frozen=True, kw_only=True):
    """How to run what was selected."""

    resume: Sequence[str] | None = None  # to go on: the names of the options that were typed, or set by a variable
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
    began = datetime.now(timezone.utc)
    asked = looked_up(asked, options)
    settings = settings_of(asked, options)
    with ExitStack() as held:
        earlier = None if options.resume is None else _taken_up(settings, options)
        if earlier:
            held.callback(earlier.files.stop)
            kill_marked(of_folder(earlier.folder))  # nobody else runs here, and what was killed could not clear up
            settings = earlier.settings
            asked, options = as_it_was(asked, options, settings)
        selected = selection.select(asked)
        entries = known_file.load(options.known) if options.known else []
        folder = options.output or default_folder(began, selected)
        placing.require(options, selected.candidates, asked.te)
        record = PublicRecord(matrix.public_reports(asked.matrix))
        todo = plan(selected, options, record)
        todo = _the_rest(todo, earlier) if earlier else todo
        console = open_console()
        executor = placing.executor(options, asked.te, folder, options.timeout)
        files = earlier.files if earlier else new_files(folder, settings)
        held.callback(files.stop)
        reporter = of_run(options.formats, folder, console, quiet=options.quiet, files=files)
        held.callback(reporter.stop)
        with executor:
            session = Session(todo, reporter, executor, entries, record)
            return session.run(earlier.run if earlier else opening(asked, selected, options, typed, began))


def prepared(asked: selection.Asked, options: RunOptions) -> tuple[selection.Asked, selection.Selection]:
    """What is asked, with --last-failed looked up, and the cases that this selects; UsageError for bad options."""
    asked = looked_up(asked, options)
    return asked, selection.select(asked)


def looked_up(asked: selection.Asked, options: RunOptions) -> selection.Asked:
    """What is asked, with the cases of --last-failed; UsageError for bad options."""
    if not (math.isfinite(options.timeout) and math.isfinite(options.min_executed)):
        raise UsageError("--timeout and --min-executed: expected a number; nan and inf are none")
    if options.mutants not in battery.MODES:
        raise UsageError(f"--mutants {options.mutants}: expected {' or '.join(battery.MODES)}")
    if options.output is not None and options.output.resolve() == Path.cwd():
        raise UsageError("--output: expected a folder for this run alone; found the current one, or an empty name")
    known_formats(options.formats)
    if options.last_failed:
        return selection.again(asked, read(options.last_failed).verdicts, options.last_failed)
    return asked


def settings_of(asked: selection.Asked, options: RunOptions) -> Settings:
    """What a run that begins writes into its journal, so that it can go on."""
    return Settings(
        gradcheck=resuming.this_gradcheck(),
        **{name: getattr(asked, name) for name in _OF_ASKED},
        **{name: getattr(options, name) for name in _OF_OPTIONS},
    )


def as_it_was(asked: selection.Asked, options: RunOptions, was: Settings) -> tuple[selection.Asked, RunOptions]:
    """What was asked when the run began."""
    asked = msgspec.structs.replace(asked, **{name: getattr(was, name) for name in _OF_ASKED})
    return asked, msgspec.structs.replace(options, **{name: getattr(was, name) for name in _OF_OPTIONS})


def _taken_up(settings: Settings, options: RunOptions) -> resuming.Earlier | None:
    if options.output is None:
        raise UsageError("--resume: expected the folder of the run that is to go on: name it with --output")
    known = [name for name in options.resume or () if name in Settings.__struct_fields__]
    named = ["case", "seed"] if options.last_failed else []
    return resuming.taken_up(options.output, settings, [*known, *named])


def plan(selected: selection.Selection, options: RunOptions, record: PublicRecord | None = None) -> Plan:
    """All that was asked for."""
    record = record or PublicRecord()
    jobs = [record.job(job(case, options.mutants, stress=options.stress)) for case in selected.cases]
    return Plan(
        cases=[str(case) for case in selected.cases],
        jobs=alike(jobs),
        excluded=selected.excluded,
        maxfail=options.maxfail,
    )


def _the_rest(every: Plan, earlier: resuming.Earlier) -> Plan:
    """What has no verdict yet; UsageError where it would not be the same run."""
    resuming.require_cases(earlier.folder, earlier.cases, every.cases)
    judged = earlier.judged
    own = {name for one in every.jobs for each in one.variables for name in each} | {"OMP_NUM_THREADS"}
    return every._replace(
        jobs=[one for one in every.jobs if str(one.case) not in judged],
        excluded=[point for point in every.excluded if str(point.case) not in judged],
        before=earlier.placed,
        seconds=earlier.seconds,
        require=lambda now: resuming.require_environment(earlier.folder, earlier.environments, now, own),
    )


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
