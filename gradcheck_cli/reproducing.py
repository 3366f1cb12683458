"""How does one red case become its smallest form, and a script that shows it? With workers, on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from gradcheck_cli import __version__, installed, pipeline, plugins, selection
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge.conclude import conclude, excluded
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure, failure_of, worst_failure
from gradcheck_cli.records.minimised import Attempt, Minimised
from gradcheck_cli.records.roles import CHAIN, is_chain
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import reproduction
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reproduce.execute import execute, execute_in
from gradcheck_cli.reproduce.making import Making
from gradcheck_cli.reproduce.makings import making
from gradcheck_cli.reproduce.minimise import FLOORS, Budget, Floor, minimise
from gradcheck_cli.reproduce.script import body
from gradcheck_cli.reproduce.scripting import CONTROL, Headers, contrasts, scripted, variants
from gradcheck_cli.reproduce.tensors import held
from gradcheck_cli.reproduce.wanted import Wanted
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import LocalExecutor

MOST_VARIANTS = 3  # tried before a script is shown without one
# A script may take this many times as long to start as a worker did, and at least so many seconds.
STARTS, LEAST_START = 2, 10.0


class Where(NamedTuple):
    """On which device a case is run, for how many seconds, and under which Transformer Engine that is not installed."""

    device: str = ""
    timeout: float = 60.0
    te: Unpacked | None = None


class Bench:
    """A worker that judges one case after another, and remembers."""

    def __init__(self, executor: LocalExecutor, device: str) -> None:
        self.executor, self.device = executor, device
        self.began = time.monotonic()
        self.environment = Environment()
        self.controls: dict[str, Ran] = {}  # what came of the lines of torch's own layer
        self._known: dict[Case, Verdict] = {}
        self._asked = self._start = 0.0

    def judged(self, case: Case) -> Verdict:
        """The verdict on a case, run once; EXCLUDED without a run where a constraint leaves it out."""
        if case not in self._known:
            self._known[case] = self._judge(case)
        return self._known[case]

    def _judge(self, case: Case) -> Verdict:
        point = matrix.excluded(case, named=True)
        if point:
            return excluded(case, point.constraint, point.why)
        self._asked = time.monotonic()
        ((_, seen),) = self.executor.run([pipeline.job(case)], lambda _: None, self._ready)
        return conclude(case, seen, self.environment)

    def _ready(self, environment: Environment) -> None:
        self.environment = environment
        self._start = max(self._start, time.monotonic() - self._asked)

    @property
    def first(self) -> list[str]:
        """What stands before everything else that a script imports, as before what a worker does."""
        return [str(self.executor.te.folder)] if self.executor.te else []

    @property
    def limit(self) -> float:
        """Seconds for a script: as many as for a case, and what its imports take, which a worker has done before."""
        return self.executor.timeout + max(LEAST_START, STARTS * self._start)

    def making(self, case: Case) -> Making:
        """How a script builds the layer of a case, with the versions that the worker found."""
        candidate = plugins.candidate(case.provider)
        made = making(case, plugins.target(case.provider, case.api), plugins.variables(case), self.environment)
        return made._replace(hook=candidate.main_grad_written_by == "hook")

    def passing(self, case: Case) -> list[Case]:
        """The first variants that pass here."""
        return self._passing(variants(case))

    def contrasts(self, case: Case) -> list[Case]:
        """Other apis that pass here; another fault of the provider `faults` is none, nor is a chain beside a layer."""
        apis = [api for api in plugins.candidate(case.provider).apis if (api == CHAIN) is is_chain(case)]
        return [] if case.provider in plugins.ON_PURPOSE else self._passing(contrasts(case, apis))

    def _passing(self, cases: Iterator[Case]) -> list[Case]:
        outcomes = ((one, self.judged(one).outcome) for one in cases)
        passed = (one for one, outcome in outcomes if outcome.green and outcome.executed)
        return list(islice(passed, MOST_VARIANTS))


@contextmanager
def bench(case: Case, asked_device: str, timeout: float, te: Unpacked | None = None) -> Iterator[Bench]:
    """A bench for a candidate, its logs gone afterwards."""
    device = installed.device(asked_device)
    otherwise = "The case itself must be run: do this where it can"
    otherwise += "" if te else ", or name one of torch, which runs anywhere"
    installed.require((plugins.candidate(case.provider),), device, te, otherwise)
    with (
        tempfile.TemporaryDirectory() as logs,
        LocalExecutor(device=device, log_dir=Path(logs), timeout=timeout, te=te) as executor,
    ):
        yield Bench(executor, device)


def red(on: Bench, case: Case, recorded: Failure | None = None) -> Failure:
    """The failure of a case; UsageError where it does not fail here, or not as it did when it was recorded."""
    verdict = on.judged(case)
    failure = worst_failure(verdict, recorded)
    if failure is None:
        why = f": {verdict.worst.why}" if verdict.worst else ""
        raise UsageError(f"expected a case that fails on this machine; {case} is {verdict.outcome.value}{why}")
    if recorded and recorded.key != failure.key:
        raise UsageError(
            f"expected {case} to fail here as in the record; found another failure, of which a script says nothing\n"
            f"  recorded: {_whole(recorded)}\n  here:     {_whole(failure)}"
        )
    return failure


def _whole(failure: Failure) -> str:
    return f"{failure}: {failure.message}" if failure.message else str(failure)


def minimise_case(text: str, where: Where, budget: Budget, output: Path | None) -> int:
    """Print each attempt and the smallest case; 0."""
    case, console = selection.parse(text), open_console()
    with bench(case, *where) as on:
        reproduction.step(f"starting a worker, and running {case}")
        red(on, case)
        found = smallest(on, case, budget, lambda attempt: reproduction.attempt(attempt, console))
    reproduction.minimised(found, console)
    if output:
        write_whole(output, reproduction.as_json(found))
    return 0


def floor_of(name: str) -> Floor:
    """The floor of that name; UsageError lists them."""
    if name not in FLOORS:
        raise UsageError(f"--floor {name}: expected {' or '.join(FLOORS)}")
    return FLOORS[name]


def smallest(
    on: Bench, case: Case, budget: Budget, told: Callable[[Attempt], None], recorded: Failure | None = None
) -> Minimised:
    """The smallest case that fails alike; its time counts from when the bench was made."""
    failure, verdict = red(on, case, recorded), on.judged(case)
    kept = [finding for finding in verdict.findings if failure_of(finding).key == failure.key]
    first = msgspec.structs.replace(verdict, findings=kept)
    return minimise(case, first, on.judged, budget, lambda: time.monotonic() - on.began, told)


def script_case(text: str, where: Where, output: Path | None) -> int:
    """Print a script that was seen to show the failure, or write it; 1 where no script shows it."""
    case, console = selection.parse(text), open_console()
    with bench(case, *where) as on:
        reproduction.step(f"starting a worker, and running {case}")
        red(on, case)
        shown = script_of(on, case, reproduction.step, contrast=False)
    if not shown.shows:
        reproduction.step(f"expected a script that shows the failure of {case} by itself; found none: {shown.why_not}")
        return 1
    if output:
        write_whole(output, shown.script)
    reproduction.script(shown, console, output)
    return 0


def script_of(
    on: Bench,
    case: Case,
    told: Callable[[str], None] = lambda _: None,
    *,
    wanted: Failure | None = None,
    contrast: bool = True,
) -> Scripted:
    """A script of a red case, run in fresh processes beside what passes: its nearest variant, another api."""
    failure = red(on, case, wanted)
    told("looking for a variant that passes")
    passing = on.passing(case) + (on.contrasts(case) if contrast else [])
    on.executor.close()  # a worker that stays would share the device with the scripts

    def run(script: str, what: str) -> Ran:
        if what == CONTROL and script in on.controls:
            return on.controls[script]
        told(f"running {what}")
        ran = execute(script, on.limit, on.first)
        if what == CONTROL:
            on.controls[script] = ran
        return ran

    return scripted(
        failure,
        case,
        passing,
        lambda one, data: body(Wanted(one, failure, data, on.device.partition(":")[0]), on.making(one)),
        run,
        Headers(
            lambda result: reproduction.header(result, failure, on.environment, __version__),
            lambda result, one: reproduction.passing_header(result, one, failure, on.environment, __version__),
        ),
    )


def tensors_of(shown: Scripted, timeout: float, first: Sequence[str] = ()) -> bytes:
    """A safetensors file of what the script of a failure holds; empty where it shows none in tensors."""
    return held(shown.script, lambda text, folder: execute_in(folder, text, timeout, first)) if shown.shows else b""
