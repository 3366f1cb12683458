"""How do jobs become observations, whatever happens to the process that runs them?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from gradcheck_cli.errors import GradcheckError, HarnessError, UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import FILLS, Observation
from gradcheck_cli.unpacked import PACKAGE, Unpacked
from gradcheck_cli.workers.process import Worker
from gradcheck_cli.workers.protocol import Failed, Message, Ready, Result, Stopped

ENGINE = "gradcheck_cli.compute.engine:Engine"


class LocalExecutor:
    """Runs jobs on one device of this machine, in order, in one long-lived worker at a time.

    What happens inside a job is that job's observation and never an exception: a worker that crashes or takes
    too long is replaced, and the run goes on. A worker that cannot start ends the run with the UsageError or
    HarnessError that it reports, and a failure of gradcheck itself with a HarnessError.
    """

    def __init__(
        self,
        *,
        device: str,
        log_dir: Path,
        timeout: float = 60.0,
        start_timeout: float = 300.0,
        engine: str = ENGINE,
        te: Unpacked | None = None,
    ) -> None:
        self.device = device
        self.log_dir = log_dir
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.engine = engine
        self.te = te
        self._worker: Worker | None = None
        self._environment = Environment()
        self._started = 0

    def __enter__(self) -> LocalExecutor:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker; the next run starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def environment(self, variables: dict[str, str], targets: list[str]) -> Environment:
        """Where a worker with these variables and candidates runs; raises as `run` does where it cannot start."""
        self._worker_for(Variables(variables), targets)
        return self._environment

    def run(
        self,
        jobs: Iterable[Job],
        on_start: Callable[[Job], None],
        on_environment: Callable[[Environment], None],
    ) -> Iterator[tuple[Job, Observation]]:
        """Observe each job, in order; on_environment hears of each worker, on_start of each job before it runs."""
        for variables, group in groupby(jobs, key=lambda job: job.variables):
            alike = list(group)
            targets = sorted({job.target for job in alike})
            announced: Worker | None = None
            for job in alike:
                worker = self._worker_for(variables, targets)
                if worker is not announced:
                    on_environment(self._environment)
                    announced = worker
                on_start(job)
                yield job, self._observe(worker, job)

    def _worker_for(self, variables: Variables, targets: list[str]) -> Worker:
        if self._worker is not None and self._worker.serves(variables, targets):
            return self._worker
        self.close()
        self._started += 1
        self._worker = Worker(
            device=self.device,
            engine=self.engine,
            targets=targets,
            variables=variables,
            log=self.log_dir / f"worker-{self._started}.log",
            te=self.te,
        )
        self._environment = self._await_ready(self._worker)
        return self._worker

    def _await_ready(self, worker: Worker) -> Environment:
        try:
            message = worker.hear(self.start_timeout)
        except TimeoutError:
            raise self._not_started(worker, f"was not ready after {self.start_timeout:g} s") from None
        except EOFError:
            raise self._not_started(worker, "died while it started") from None
        except msgspec.MsgspecError as error:
            raise self._not_started(worker, f"said something else ({error})") from None
        if isinstance(message, Stopped):
            self.close()
            raise _as_error(message)
        if not isinstance(message, Ready):
            raise self._not_started(worker, f"said something else ({message})")
        self._require_asked(message.environment)
        return message.environment

    def _require_asked(self, environment: Environment) -> None:
        """HarnessError where the worker has imported another Transformer Engine than it was given."""
        found = environment.versions.get(PACKAGE)
        if self.te and found and found != self.te.version:
            self.close()
            raise HarnessError(
                f"expected the worker to import Transformer Engine {self.te.version} from {self.te.folder}, "
                f"found {found}: see what puts another one before it, as a .pth file or sitecustomize.py can"
            )

    def _not_started(self, worker: Worker, what: str) -> HarnessError:
        self._worker = None
        status = worker.terminate()
        path = f"PYTHONPATH={self.te.folder}:$PYTHONPATH " if self.te else ""
        modules = ", ".join(sorted({target.partition(":")[0] for target in worker.targets})) or "torch"
        return HarnessError(
            f"the worker on {self.device} was to import {modules} and say that it is ready; it {what} ({status}).\n"
            f"Its last output (all of it: {worker.log}):\n{worker.output() or '(none)'}\n"
            f'To see it alone: {path}{sys.executable} -c "import {modules}"'
        )

    def _observe(self, worker: Worker, job: Job) -> Observation:
        began = time.monotonic()
        worker.send(job)
        try:
            message = worker.hear(self.timeout + own_seconds(job.case, len(job.mutants)))
        except TimeoutError:
            return self._lost(worker, job, "timed_out", time.monotonic() - began)
        except EOFError:
            return self._lost(worker, job, "crashed", time.monotonic() - began)
        except msgspec.MsgspecError as error:
            self.close()
            raise _own_failure(job, f"the worker's answer cannot be read: {error}") from error
        observation = self._observation_in(message, job)
        if observation.raised is not None and observation.raised.sticky:
            self.close()
        return observation

    def _observation_in(self, message: Message, job: Job) -> Observation:
        if isinstance(message, Result) and message.observation.case == str(job.case):
            return message.observation
        self.close()
        if isinstance(message, Stopped):
            raise _as_error(message)
        if isinstance(message, Failed):
            raise _own_failure(job, message.traceback)
        raise _own_failure(job, f"the worker answered something else: {message}")

    def _lost(self, worker: Worker, job: Job, ending: Literal["crashed", "timed_out"], seconds: float) -> Observation:
        self._worker = None
        status = worker.terminate()
        return Observation(
            case=str(job.case),
            attempt=job.attempt,
            ending=ending,
            exit_status=status,
            last_output=worker.output(),
            seconds=seconds,
        )


def _as_error(message: Stopped) -> GradcheckError:
    return (UsageError if message.exit_code == UsageError.exit_code else HarnessError)(message.text)


def own_seconds(case: Case, mutants: int = 0) -> float:
    """What gradcheck's own work on a case may take: reference and comparison, a microsecond an element and channel.

    Measured: 25 s on one core of a CPU for 2048 x 2048 x 4 experts x 2 microbatches x 2 channels, 67 million elements;
    with 142 mutants a case of the core matrix takes four times as long.
    """
    weights = case.num_gemms * case.in_features * case.out_features
    features = case.in_features + case.out_features
    return (
        (case.repeat + mutants / 40)
        * 1e-6
        * len(FILLS)
        * sum(weights + sum(case.splits(k)) * features for k in range(case.microbatches))
    )


def _own_failure(job: Job, found: str) -> HarnessError:
    return HarnessError(
        f"gradcheck itself failed on {job.case}: an observation was expected, this was found:\n{found.rstrip()}\n"
        f"It says nothing about the candidate. Please report it with these lines; "
        f"to see it again: gradcheck run --case '{job.case}'"
    )
