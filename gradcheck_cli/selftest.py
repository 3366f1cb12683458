"""Would gradcheck see a wrong gradient on this machine? Every fault against every channel, and every way to end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from gradcheck_cli import installed, pipeline, selection
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.sensitivity import Tally
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.sensitivity import Ended
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.formats import progress
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.reporters.sensitivity import show
from gradcheck_cli.workers.executor import LocalExecutor

SURVIVED = 3  # the harness itself failed
FINDINGS = 1  # the layer that was to be right is not
TOO_LITTLE = 5  # too little was executed
HANGS_FOR = 10.0  # seconds; a small case takes a tenth of one
SMALL = "in_features=16:out_features=24"


def selftest(matrix: str, provider: str, asked_device: str) -> int:
    """Run the matrix with all mutants and each ending, and tell what was seen; 0 where all of it was."""
    asked = selection.Asked(matrix=matrix, provider=[provider])
    selected = selection.select(asked)
    device = installed.device(asked_device)
    installed.require(selected.candidates, device)
    console, began = open_console(), time.monotonic()
    options = pipeline.RunOptions(mutants="all")
    run = pipeline.opening(asked, selected, options, pipeline.Typed(), datetime.now(timezone.utc))
    reporter = progress(console)
    try:
        with tempfile.TemporaryDirectory() as logs, tempfile.TemporaryDirectory() as other_logs:
            reporter.opened(run, [str(case) for case in selected.cases])
            found = faults_seen(selected.cases, device, Path(logs), reporter)
            endings = list(endings_seen(device, Path(other_logs), reporter))
    finally:
        reporter.stop()
    told = found.told(endings, time.monotonic() - began)
    show(told, console)
    if not told.sees:
        return SURVIVED
    if told.passed < told.cases:
        return FINDINGS
    return 0 if told.enough else TOO_LITTLE


def faults_seen(cases: Sequence[Case], device: str, logs: Path, reporter: Reporter) -> Tally:
    """Each case with all mutants of what it left."""
    found, where = Tally(), [Environment()]

    def ready(environment: Environment) -> None:
        where.append(environment)
        reporter.environment(environment)

    with LocalExecutor(device=device, log_dir=logs) as executor:
        jobs = [pipeline.job(case, "all") for case in cases]
        for job, seen in executor.run(jobs, lambda job: reporter.started(job.case), ready):
            verdict = conclude(job.case, seen, where[-1])
            found.add(job.case, seen, verdict)
            reporter.finished(verdict)
    return found


def endings_seen(device: str, logs: Path, reporter: Reporter) -> Iterator[Ended]:
    """A layer that ends in each of the ways that this device has, and after each of them one that is right."""
    endings = {name: one for name, one in ENDINGS.items() if device.startswith("cuda") or not one.needs_cuda}
    right = Case.parse(f"torch:api=loop:{SMALL}")
    cases = [case for name in endings for case in (Case.parse(f"faults:api={name}:{SMALL}"), right)]
    outcomes: list[Outcome] = []
    with LocalExecutor(device=device, log_dir=logs, timeout=HANGS_FOR) as executor:
        jobs = [pipeline.job(case) for case in cases]
        for job, seen in executor.run(jobs, lambda job: reporter.started(job.case), lambda _: None):
            outcomes.append(conclude(job.case, seen, Environment()).outcome)
    for (name, ending), outcome, after in zip(endings.items(), outcomes[::2], outcomes[1::2], strict=True):
        yield Ended(ending=name, summary=ending.summary, deserves=ending.deserves, outcome=outcome, after=after)
