"""How do jobs become observations, whatever happens to the processes that run them?"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from gradcheck_cli.errors import HarnessError
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.lane import Lane, Setup
from gradcheck_cli.workers.process import LOOK, Place

ENGINE = "gradcheck_cli.compute.engine:Engine"
MOST_FAILURES = 5  # of gradcheck itself, after which it will fail on the other cases too
OnStart = Callable[[Job], None]
OnEnvironment = Callable[[Environment], None]
Self = TypeVar("Self", bound="Executor")  # typing.Self came with Python 3.11


class Executor(ABC):
    """What runs the jobs of a session, wherever its workers stand."""

    def __enter__(self: Self) -> Self:  # noqa: PYI019
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop the workers."""

    @abstractmethod
    def run(
        self, jobs: Iterable[Job], on_start: OnStart, on_environment: OnEnvironment
    ) -> Iterator[tuple[Job, Observation]]:
        """Observe each job; on_start hears of each once before it runs, on_environment of where it does."""


class LocalExecutor(Executor):
    """Runs jobs on this machine: one long-lived worker at a time in each of its places, handed out as they come free.

    What happens inside a job is that job's observation and never an exception: a worker that crashes, takes too long
    or answers something else is replaced, and the run goes on; with `retry` the job is run once more in the
    replacement, and what is seen then is the observation's `again`. A worker that cannot start costs its place, and
    a failure of gradcheck itself the observation of its case: the others are run all the same, as far as there are
    places and not too many such failures, and then the first UsageError or HarnessError is raised.
    """

    start_timeout = 300.0  # seconds that the imports of a worker may take

    def __init__(
        self,
        *,
        device: str | Sequence[Place],
        log_dir: Path,
        timeout: float = 60.0,
        engine: str = ENGINE,
        te: Unpacked | None = None,
        retry: bool = False,
    ) -> None:
        """`device` names the place of a single worker, or the places of several."""
        self.timeout, self.te, self.log_dir = timeout, te, log_dir
        self._numbers = count(1)
        setup = Setup(engine, te, timeout, self.start_timeout, retry, self._new_log)
        self.lanes = [Lane(setup, place) for place in ([Place(device)] if isinstance(device, str) else device)]
        self._told: Environment | None = None
        self._failures: list[HarnessError] = []

    def close(self) -> None:
        """Stop the workers; the next run starts others."""
        for lane in self.lanes:
            lane.close()

    def environment(self, variables: Variables, targets: list[str]) -> Environment:
        """Where a worker with these variables and candidates runs; raises as `run` does where it cannot start."""
        lane = self.lanes[0]
        lane.failure = None
        lane.require(variables, targets)
        while lane.starting and not lane.ready():
            _wait([lane])
        if lane.failure:
            raise lane.failure
        return lane.environment

    def run(
        self,
        jobs: Iterable[Job],
        on_start: OnStart,
        on_environment: OnEnvironment,
        candidates: Sequence[str] = (),
    ) -> Iterator[tuple[Job, Observation]]:
        """Observe each job; on_start hears of each before it runs, on_environment of each worker.

        With one place the order is that of the jobs. The environment that was told of last is that of the observation.
        Workers are ready for the `candidates` too, which come later.
        """
        todo = deque(jobs)
        for lane in self.lanes:
            lane.failure = None
        targets = targets_of(todo, candidates)
        self._told, self._failures = None, []
        try:
            while self._handed_out(todo, targets, on_start, on_environment):
                busy = [lane for lane in self.lanes if lane.job is not None]
                _wait(busy)
                for lane in busy:
                    yield from self._heard(lane, todo, on_start, on_environment)
        finally:
            for lane in self.lanes:
                lane.drop()
        failures = [*self._failures, *(lane.failure for lane in self.lanes if lane.failure)]
        if failures:
            raise failures[0]

    def _handed_out(
        self, todo: deque[Job], targets: dict[str, list[str]], on_start: OnStart, on_environment: OnEnvironment
    ) -> bool:
        """Whether a job is at work, each lane that is free and can have a worker given one."""
        for lane in self.lanes:
            if lane.job is None and lane.failure is None and todo:
                lane.take(todo[0], targets[str(todo.popleft().variables)])
                if not lane.starting:
                    self._begin(lane, on_start, on_environment)
        return any(lane.job is not None for lane in self.lanes)

    def _heard(
        self, lane: Lane, todo: deque[Job], on_start: OnStart, on_environment: OnEnvironment
    ) -> Iterator[tuple[Job, Observation]]:
        """What a lane has to tell of its job, if anything."""
        job = lane.job
        if lane.starting and lane.ready():
            self._tell(lane, on_environment)
            self._begin(lane, on_start, on_environment)
        try:
            seen = None if lane.starting else lane.seen()
        except HarnessError as error:
            lane.drop()
            self._failures.append(error)
            if len(self._failures) == MOST_FAILURES:
                raise self._failures[0] from None
            return
        if lane.failure and seen is None and job is not None:
            todo.appendleft(job)
        elif job is not None and seen is not None:
            self._tell_of_another(lane, on_environment)
            yield job, seen

    def _begin(self, lane: Lane, on_start: OnStart, on_environment: OnEnvironment) -> None:
        if lane.job is not None and not lane.retries:
            self._tell_of_another(lane, on_environment)
            on_start(lane.job)
        lane.send()

    def _tell_of_another(self, lane: Lane, on_environment: OnEnvironment) -> None:
        if lane.environment != self._told:
            self._tell(lane, on_environment)

    def _tell(self, lane: Lane, on_environment: OnEnvironment) -> None:
        self._told = lane.environment
        on_environment(lane.environment)

    def _new_log(self) -> Path:
        """A log that is not there: of a run that is resumed those of its beginning are."""
        logs = (self.log_dir / f"worker-{number}.log" for number in self._numbers)
        return next(log for log in logs if not log.exists())


def targets_of(jobs: Iterable[Job], more: Sequence[str] = ()) -> dict[str, list[str]]:
    """The candidates of a worker that is to run all jobs under its variables, and more of them."""
    targets: dict[str, set[str]] = {}
    for job in jobs:
        targets.setdefault(str(job.variables), set(more)).add(job.target)
    return {variables: sorted(held) for variables, held in targets.items()}


def _wait(lanes: Sequence[Lane]) -> None:
    """Wait until one of them may have something to say, or has had time enough."""
    poll = select.poll()
    workers = [lane.worker for lane in lanes if lane.worker is not None]
    for worker in workers:
        for number in worker.filenos():
            poll.register(number, select.POLLIN)
    poll.poll(1000 * min([LOOK, *(lane.patience for lane in lanes)]))
