"""What stands on a node of a Ray cluster? A local executor of one place, asked for one case at a time."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from gradcheck_cli import __version__
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import LocalExecutor
from gradcheck_cli.workers.process import Place

_THREADS = "OMP_NUM_THREADS"


class Post(NamedTuple):
    """What the actors of a run have in common."""

    device: str
    timeout: float
    engine: str
    te: Unpacked | None
    retry: bool
    variables: dict[str, str]  # that the user has set where the run was started
    not_imported_from: list[str]  # folders of the driver that Ray puts onto sys.path


class Answer(NamedTuple):
    """What came of a job: an observation, or a failure, or a failure after it."""

    environment: Environment
    seen: Observation | None
    failure: GradcheckError | None
    stands: bool  # whether this place can have another worker


class Actor:
    """A place of its own; asked by one driver, and never for two things at once.

    Its methods run in the main thread, whose end the worker does not survive (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, post: Post) -> None:
        sys.path[:] = [path for path in sys.path if path not in post.not_imported_from and not _of_ray(path)]
        self._folder = tempfile.TemporaryDirectory(prefix="gradcheck-")
        self._executor = LocalExecutor(
            device=[Place(post.device, Variables(_variables_here(post.variables)))],
            log_dir=Path(self._folder.name),
            timeout=post.timeout,
            engine=post.engine,
            te=post.te,
            retry=post.retry,
        )

    def version(self) -> str:
        """Of gradcheck, on this node."""
        return __version__

    def ready(self, variables: Variables, targets: list[str]) -> Environment | GradcheckError:
        """Have a worker with these variables and candidates: where it runs, or why it cannot start."""
        try:
            return self._executor.environment(variables, targets)
        except GradcheckError as error:
            return error

    def run(self, job: Job, targets: list[str]) -> Answer:
        """Observe one job."""
        seen, failure = None, None
        try:
            for _, observation in self._executor.run([job], lambda _: None, lambda _: None, targets):
                seen = observation
        except GradcheckError as error:
            failure = error
        (lane,) = self._executor.lanes
        return Answer(lane.environment, seen, failure, lane.failure is None)

    def close(self) -> None:
        """Stop the worker, and whatever its cases left running."""
        self._executor.close()
        self._folder.cleanup()


def _variables_here(users: dict[str, str]) -> dict[str, str]:
    """Give this process what the user has set; what it has from Ray alone, and a candidate may want otherwise.

    Ray sets OMP_NUM_THREADS to the processors of the actor, where its raylet has none
    (https://docs.ray.io/en/latest/ray-core/configure.html).
    """
    share = os.environ.pop(_THREADS, "")
    os.environ.update(users)
    return {_THREADS: share} if share else {}


def _of_ray(path: str) -> bool:
    """Whether Ray keeps its own copies of other packages there, which no worker is to import."""
    package = getattr(sys.modules.get("ray"), "__file__", None)
    return bool(package) and Path(str(package)).parent in Path(path).parents
