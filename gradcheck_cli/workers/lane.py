"""What becomes of one job? A lane has one worker at a time: it starts, is asked, and answers or is replaced."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gradcheck_cli.errors import GradcheckError, HarnessError, UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import FILLS, Observation
from gradcheck_cli.unpacked import PACKAGE, Unpacked
from gradcheck_cli.workers.process import Garbled, Place, Worker
from gradcheck_cli.workers.protocol import Failed, Message, Ready, Result, Stopped

Lost = Literal["crashed", "timed_out", "lost"]


class Setup(NamedTuple):
    """What all workers of an executor have in common."""

    engine: str
    te: Unpacked | None
    timeout: float
    start_timeout: float
    retry: bool  # what is lost is tried once more, in a fresh worker
    new_log: Callable[[], Path]


class Lane:
    """One job at a time, in one worker at a time. `job` is the one at work, None where the lane is free."""

    def __init__(self, setup: Setup, place: Place) -> None:
        self.setup, self.place = setup, place
        self.worker: Worker | None = None
        self.environment = Environment()
        self.job: Job | None = None
        self.starting = False
        self.failure: GradcheckError | None = None  # why it can have no worker
        self._targets: list[str] = []
        self._first: Observation | None = None
        self._began = self._deadline = 0.0

    def take(self, job: Job, targets: list[str]) -> None:
        """Begin with a job: with a worker that fits it, or a new one."""
        self.job, self._targets, self._first = job, targets, None
        self.require(job.variables, targets)

    def require(self, variables: Variables, targets: list[str]) -> None:
        """Have a worker that fits, which may be starting."""
        if self.worker is not None and self.worker.serves(variables, targets):
            return
        self.close()
        self.worker = Worker(
            place=self.place,
            engine=self.setup.engine,
            targets=targets,
            variables=variables,
            log=self.setup.new_log(),
            te=self.setup.te,
        )
        self.starting, self._deadline = True, time.monotonic() + self.setup.start_timeout

    def send(self) -> None:
        """Ask the worker, which is ready, for the job."""
        if self.worker is None or self.job is None:
            return
        self._began = time.monotonic()
        self._deadline = (
            self._began + (self.job.limit or self.setup.timeout) + own_seconds(self.job.case, len(self.job.mutants))
        )
        self.worker.send(msgspec.structs.replace(self.job, attempt=self.job.attempt + self.retries))

    @property
    def retries(self) -> bool:
        """Whether the job at work was lost before, and is tried once more."""
        return self._first is not None

    @property
    def patience(self) -> float:
        """Seconds until something must have been heard."""
        return max(0.0, self._deadline - time.monotonic())

    def ready(self) -> bool:
        """Whether the worker that was starting can be asked; where it never can, `failure` says why.

        UsageError where what was asked for is not on this machine.
        """
        worker = self._at_work()
        try:
            message = worker.heard()
        except EOFError:
            return self._not_started(worker, "died while it started")
        except Garbled as error:
            return self._not_started(worker, f"said something else ({error})")
        if message is None:
            late = f"was not ready after {self.setup.start_timeout:g} s"
            return False if self.patience else self._not_started(worker, late)
        if isinstance(message, Stopped):
            self.close()
            self.failure = _as_error(message)
            return False
        if not isinstance(message, Ready):
            return self._not_started(worker, f"said something else ({message})")
        self._require_asked(message.environment)
        self.environment, self.starting = message.environment, False
        return True

    def seen(self) -> Observation | None:
        """What was seen of the job, None where that is not known yet; then the lane is free."""
        if self.job is None or self.failure:
            return self._untried()
        job, worker = self.job, self._at_work()
        try:
            message = worker.heard()
        except EOFError:
            return self._suspect(self._lost(worker, job, "crashed"))
        except Garbled as error:
            return self._suspect(self._lost(worker, job, "lost", f"a message that cannot be read: {error}"))
        if message is not None:
            return self._answered(worker, job, message)
        return None if self.patience else self._suspect(self._lost(worker, job, "timed_out"))

    def _answered(self, worker: Worker, job: Job, message: Message) -> Observation | None:
        if isinstance(message, Stopped):
            self.close()
            raise _as_error(message)
        if isinstance(message, Failed):
            self.close()
            raise _own_failure(job, message.traceback)
        if not isinstance(message, Result) or message.observation.case != str(job.case):
            what = message.observation.case if isinstance(message, Result) else type(message).__name__
            return self._suspect(self._lost(worker, job, "lost", f"the answer to something else: {what}"))
        raised = message.observation.raised
        if raised is not None and (raised.sticky or raised.suspect):
            self.close()
            return self._suspect(message.observation)
        return self._told(message.observation)

    def _suspect(self, seen: Observation) -> Observation | None:
        """Of a case that cost its worker: once more, in a fresh one, before it is told."""
        if not self.setup.retry or self.job is None or self._first is not None:
            return self._told(seen)
        self._first = seen
        self.require(self.job.variables, self._targets)
        return None

    def _told(self, seen: Observation) -> Observation:
        first, self._first, self.job = self._first, None, None
        return msgspec.structs.replace(first, again=seen) if first is not None else seen

    def _untried(self) -> Observation | None:
        """What was seen of a job whose second try cannot begin."""
        first, self._first, self.job = self._first, None, None
        return first

    def _lost(self, worker: Worker, job: Job, ending: Lost, answer: str = "") -> Observation:
        self.worker, seconds = None, time.monotonic() - self._began
        status = worker.terminate()
        return Observation(
            case=str(job.case),
            attempt=job.attempt + self.retries,
            ending=ending,
            exit_status=answer or status,
            last_output=worker.output(),
            seconds=seconds,
        )

    def close(self) -> None:
        """Stop the worker; one that is at work is not waited for."""
        worker, self.worker, self.starting = self.worker, None, False
        if worker is not None:
            worker.close()

    def drop(self) -> None:
        """Give the job up, and the worker with it."""
        if self.job is not None:
            self.job, self._first = None, None
            self.close()

    def _at_work(self) -> Worker:
        if self.worker is None:
            raise HarnessError("gradcheck itself failed: expected a worker in this lane, found none")
        return self.worker

    def _require_asked(self, environment: Environment) -> None:
        """HarnessError where the worker has imported another Transformer Engine than it was given."""
        found, te = environment.versions.get(PACKAGE), self.setup.te
        if te and found and found != te.version:
            self.close()
            raise HarnessError(
                f"expected the worker to import Transformer Engine {te.version} from {te.folder}, "
                f"found {found}: see what puts another one before it, as a .pth file or sitecustomize.py can"
            )

    def _not_started(self, worker: Worker, what: str) -> bool:
        self.worker, self.starting = None, False
        status = worker.terminate()
        path = f"PYTHONPATH={self.setup.te.folder}:$PYTHONPATH " if self.setup.te else ""
        modules = ", ".join(sorted({target.partition(":")[0] for target in worker.targets})) or "torch"
        self.failure = HarnessError(
            f"the worker on {self.place.device} was to import {modules} and say that it is ready; it {what} ({status})."
            f"\nIts last output (all of it: {worker.log}):\n{worker.output() or '(none)'}\n"
            f'To see it alone: {path}{sys.executable} -c "import {modules}"'
        )
        return False


def _as_error(message: Stopped) -> GradcheckError:
    return (UsageError if message.exit_code == UsageError.exit_code else HarnessError)(message.text)


def own_seconds(case: Case, mutants: int = 0) -> float:
    """What gradcheck's own work on a case may take: reference and comparison, a microsecond an element and channel.

    Measured: 25 s on one core of a CPU for 2048 x 2048 x 4 experts x 2 microbatches x 2 channels, 67 million elements;
    with 142 mutants a case of the core matrix takes four times as long. And a hundredth of a second for what each
    expert holds after a microbatch: where that is wrong, to explain it takes some 300 operators of torch for an output
    and 1,900 for a wgrad of 128 experts. On an H200 that 14 workers share a case of 128 experts took 46 s.
    """
    weights = case.num_gemms * case.in_features * case.out_features
    features = case.in_features + case.out_features
    elements = sum(weights + sum(case.splits(k)) * features for k in range(case.microbatches))
    parts = case.num_gemms * case.microbatches
    return (case.repeat + mutants / 40) * len(FILLS) * (1e-6 * elements + 1e-2 * parts)


def _own_failure(job: Job, found: str) -> HarnessError:
    return HarnessError(
        f"gradcheck itself failed on {job.case}: an observation was expected, this was found:\n{found.rstrip()}\n"
        f"It says nothing about the candidate. Please report it with these lines; "
        f"to see it again: gradcheck run --case '{job.case}'"
    )
