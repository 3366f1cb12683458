"""How do jobs become observations on a Ray cluster, whatever happens to its nodes?"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradcheck_cli import __version__
from gradcheck_cli.errors import GradcheckError, HarnessError, UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import ENGINE, MOST_FAILURES, Executor, OnEnvironment, OnStart, targets_of
from gradcheck_cli.workers.process import GRACE, LOOK
from gradcheck_cli.workers.ray_actor import Actor, Answer, Post
from gradcheck_cli.workers.ray_cluster import Slot, connect, imported, slots

# What the user sets for libraries is set where the run is started, and must hold on every node.
_USERS = (
    "NVTE_",
    "CUBLAS",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32",
    "PYTORCH_",
    "TORCH_",
    "OMP_NUM_THREADS",
    "GRADCHECK_",
)


class _Hand:
    """One actor: `job` is the one that it has, `asked` the call under way, None where it is free."""

    def __init__(self, actor: Any, patience: float) -> None:
        self.actor = actor
        self.asked: Any = actor.version.remote()
        self.deadline = time.monotonic() + patience  # until a node must have taken it in
        self.placed = self.at_work = False
        self.job: Job | None = None
        self.environment = Environment()
        self.failure: GradcheckError | None = None  # why it can have no worker
        self.gone: HarnessError | None = None  # why there is no such actor

    @property
    def stands(self) -> bool:
        """Whether it is worth waiting for."""
        return self.failure is None and self.gone is None

    def back(self) -> Job | None:
        """Take its job from it."""
        job, self.job, self.asked, self.at_work = self.job, None, None, False
        return job


class RayExecutor(Executor):
    """Runs jobs on a Ray cluster: an actor in each slot has an ordinary worker there, and gets jobs as it comes free.

    What happens inside a job is its observation, as of a LocalExecutor. An actor that is lost, with its node or alone,
    costs its slot; the job that it had is given to another one, once: a job that loses two actors is a failure of
    gradcheck itself. HarnessError where jobs are left and no actor is.
    """

    start_timeout = 300.0  # seconds that a node may take to have room for the first actor

    def __init__(
        self,
        *,
        slot: Slot,
        timeout: float = 60.0,
        engine: str = ENGINE,
        te: Unpacked | None = None,
        retry: bool = False,
    ) -> None:
        """Connect; UsageError where Ray is not installed, does not answer, or has no such slots."""
        self._ray = imported()
        self._connected_here = connect(self._ray, slot.address)
        try:
            device, self._slots = slots(self._ray.nodes(), slot)
        except UsageError:
            self.close()
            raise
        aside = {str(Path.cwd()), str(Path(sys.argv[0]).resolve().parent)} - set(sys.path)
        users = {name: value for name, value in os.environ.items() if name.startswith(_USERS)}
        self.device = device
        self._post = Post(device, timeout, engine, te, retry, users, sorted(aside))
        self._hands: list[_Hand] = []
        self._todo: deque[Job] = deque()
        self._targets: dict[str, list[str]] = {}
        self._told: Environment | None = None
        self._begun: set[Case] = set()
        self._lost: set[Case] = set()
        self._failures: list[GradcheckError] = []

    def close(self) -> None:
        """Leave the cluster; one that was started for this run ends."""
        if self._connected_here:
            self._ray.shutdown()

    def run(
        self, jobs: Iterable[Job], on_start: OnStart, on_environment: OnEnvironment
    ) -> Iterator[tuple[Job, Observation]]:
        """Observe each job, as LocalExecutor does; on_start hears once of a job that is given to a second actor."""
        self._todo = deque(jobs)
        self._targets = targets_of(self._todo)
        self._told, self._begun, self._lost, self._failures = None, set(), set(), []
        remote = self._ray.remote(Actor)
        wanted = self._slots[: len(self._todo)]
        self._hands = [_Hand(remote.options(**one).remote(self._post), self.start_timeout) for one in wanted]
        try:
            while waiting := self._handed_out():
                for hand in self._with_news(waiting):
                    yield from self._heard(hand, on_start, on_environment)
        finally:
            self._stop()
        failures = [*self._failures, *(hand.failure for hand in self._hands if hand.failure)]
        gone = [hand.gone for hand in self._hands if hand.gone]
        if failures or self._todo:
            raise [*failures, *gone][0]

    def _handed_out(self) -> list[_Hand]:
        """The actors that have something to say, each free one given a job; none where nothing is to be waited for."""
        for hand in self._hands:
            if hand.stands and hand.asked is None and self._todo:
                hand.job = self._todo.popleft()
                hand.asked = hand.actor.ready.remote(hand.job.variables, self._of(hand.job))
        asked = [hand for hand in self._hands if hand.asked is not None]
        return asked if self._todo or any(hand.job for hand in asked) else []

    def _with_news(self, waiting: Sequence[_Hand]) -> list[_Hand]:
        done, _ = self._ray.wait([hand.asked for hand in waiting], timeout=LOOK)
        for hand in waiting:
            if not hand.placed and hand.asked not in done and time.monotonic() > hand.deadline:
                hand.back()
                hand.gone = HarnessError(
                    f"expected room for an actor on a node of the Ray cluster, found none for "
                    f"{self.start_timeout:g} s; `ray status` shows what others hold"
                )
        return [hand for hand in waiting if hand.asked in done]

    def _heard(
        self, hand: _Hand, on_start: OnStart, on_environment: OnEnvironment
    ) -> Iterator[tuple[Job, Observation]]:
        """What an actor has to tell of its job, if anything."""
        try:
            said = self._ray.get(hand.asked)
        except self._ray.exceptions.RayError as error:
            self._is_gone(hand, error)
            return
        if isinstance(said, Answer):
            yield from self._answered(hand, said, on_environment)
        elif isinstance(said, Environment) and hand.job is not None:
            hand.environment, hand.at_work = said, True
            self._tell_of_another(hand, on_environment)
            if hand.job.case not in self._begun:
                self._begun.add(hand.job.case)
                on_start(hand.job)
            hand.asked = hand.actor.run.remote(hand.job, self._of(hand.job))
        elif isinstance(said, GradcheckError):
            hand.failure = said
            self._put_back(hand)
        else:
            hand.placed, hand.asked = True, None
            hand.failure = None if said == __version__ else _another_version(said)

    def _answered(self, hand: _Hand, said: Answer, on_environment: OnEnvironment) -> Iterator[tuple[Job, Observation]]:
        if not said.stands:
            hand.failure = said.failure
            if said.seen is None:
                self._put_back(hand)
                return
        job = hand.back()
        if said.seen is not None and job is not None:
            hand.environment = said.environment
            self._tell_of_another(hand, on_environment)
            yield job, said.seen
        elif said.failure is not None:
            self._failed(said.failure)

    def _is_gone(self, hand: _Hand, error: Exception) -> None:
        was_at_work, job = hand.at_work, hand.job
        self._kill(hand)  # one that is out of reach for a while must not go on with what another one is given
        said = " ".join(str(error).split())
        hand.gone = HarnessError(
            f"expected the Ray actor to answer, and it was lost, with no other left; Ray says:\n{said}"
        )
        if job is None or not was_at_work or job.case not in self._lost:
            self._put_back(hand)
            self._lost.update([job.case] if job is not None and was_at_work else [])
            return
        hand.back()
        self._failed(
            HarnessError(
                f"expected an observation of {job.case}, and two Ray actors were lost that had it; Ray says:\n{said}"
            )
        )

    def _failed(self, failure: GradcheckError) -> None:
        self._failures.append(failure)
        if len(self._failures) == MOST_FAILURES:
            raise self._failures[0]

    def _put_back(self, hand: _Hand) -> None:
        job = hand.back()
        if job is not None:
            self._todo.appendleft(job)

    def _tell_of_another(self, hand: _Hand, on_environment: OnEnvironment) -> None:
        if hand.environment != self._told:
            self._told = hand.environment
            on_environment(hand.environment)

    def _of(self, job: Job) -> list[str]:
        return self._targets[str(job.variables)]

    def _stop(self) -> None:
        """End the actors: those that are at work at once, the others with their workers."""
        idle = [hand.actor.close.remote() for hand in self._hands if hand.placed and not hand.gone and not hand.asked]
        with suppress(self._ray.exceptions.RayError):
            if idle:
                self._ray.wait(idle, num_returns=len(idle), timeout=3 * GRACE)
        for hand in self._hands:
            self._kill(hand)

    def _kill(self, hand: _Hand) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(hand.actor)


def _another_version(found: str) -> HarnessError:
    return HarnessError(
        f"expected gradcheck {__version__} on each node of the Ray cluster, found {found}: install it there"
    )
