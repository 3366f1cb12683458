"""Do cases come through a Ray cluster as they come through this machine, whatever ends there?"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import ROOT, child, typed

from gradcheck_cli.errors import GradcheckError, HarnessError, UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.workers.ray_cluster import Slot, connect, slots
from gradcheck_cli.workers.ray_executor import RayExecutor

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: gradcheck-cli[ray]")
# Of Ray's own files and sockets, which it leaves to the end of the process.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)

# A dozen that are right, and one that costs its worker.
THIRTEEN = """
[[block]]
provider = ["torch"]
api = ["loop", "grouped_mm"]
dtype = ["bf16"]
bias = [0, 1]
m_splits = ["1,2", "3,0", "2,2"]
in_features = [16]
out_features = [24]
num_gemms = [2]

[[block]]
provider = ["faults"]
api = ["segfault"]
in_features = [16]
out_features = [24]
m_splits = ["1,2"]
num_gemms = [2]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Ray: one node of two processors. What it starts imports what this process does."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parent)]))
        patch.setenv("WORKER_TEST_FLAG", str(tmp_path_factory.mktemp("flags") / "flag"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ended_by = signal.getsignal(signal.SIGTERM)
        head = {"num_cpus": 2, "resources": {"accelerator_type:H100": 1}, "include_dashboard": False}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        signal.signal(signal.SIGTERM, ended_by)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


class Ran:
    """What came of jobs on the cluster, with all that was said on the way."""

    def __init__(
        self,
        *apis: str,
        workers: int = 2,
        engine: str = "Engine",
        types: tuple[str, ...] = (),
        after_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.started: list[str] = []
        self.environments: list[Environment] = []
        self.told: list[tuple[str, Observation]] = []
        self.error: GradcheckError | None = None
        jobs = [
            Job(case=Case(provider="fake", api=api, seed=i), target="misbehaving:build") for i, api in enumerate(apis)
        ]
        slot = Slot("cpu", workers, types)
        with RayExecutor(slot=slot, engine=f"misbehaving:{engine}", timeout=30, retry=True) as executor:
            try:
                for job, seen in executor.run(jobs, self._start, self.environments.append):
                    self.told.append((str(job.case), seen))
                    if len(self.told) == 1:
                        after_first()
            except GradcheckError as error:
                self.error = error
            self.lost = sum(hand.gone is not None for hand in executor._hands)

    def _start(self, job: Job) -> None:
        self.started.append(str(job.case))

    @property
    def cases(self) -> list[str]:
        return sorted(case for case, _ in self.told)


@needs_ray
def test_verdicts_are_those_of_this_machine_byte_for_byte(cluster: Any, tmp_path: Path) -> None:
    matrix = tmp_path / "thirteen.toml"
    matrix.write_text(THIRTEEN, "utf-8")
    more = ("--matrix", str(matrix), "--provider", "torch", "--provider", "faults", "--device", "cpu", "--workers", "2")
    here = typed("run", *more, "--output", str(tmp_path / "here"))
    there = typed("run", *more, "--output", str(tmp_path / "there"), "--executor", "ray")
    assert (there.code, there.err) == (here.code, here.err) == (1, "")
    assert told(tmp_path / "there") == told(tmp_path / "here")
    assert len(told(tmp_path / "there")) == 13
    crash = next(one for one in told(tmp_path / "there") if "segfault" in one)
    assert "SIGSEGV" in crash
    assert '"outcome": "CRASHED"' in crash
    events = Counter(json.loads(line)["event"] for line in (tmp_path / "there/journal.jsonl").read_text().splitlines())
    assert (events["started"], events["verdict"]) == (13, 13)


def told(folder: Path) -> list[str]:
    """Every verdict of a run, but for its seconds."""
    verdicts = json.loads((folder / "report.json").read_text("utf-8"))["verdicts"]
    return sorted(json.dumps(without_seconds(one), sort_keys=True) for one in verdicts)


def without_seconds(held: Any) -> Any:
    if isinstance(held, dict):
        return {name: without_seconds(one) for name, one in held.items() if "seconds" not in name}
    return [without_seconds(one) for one in held] if isinstance(held, list) else held


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_job_whose_actor_is_lost_is_run_by_another_one_and_told_once() -> None:
    ran = Ran("fine", "fine", "end_the_parent_once", "fine", "fine", "fine")
    assert (ran.error, ran.lost) == (None, 1)
    assert ran.cases == sorted(ran.started)
    assert len(set(ran.cases)) == len(ran.cases) == 6
    assert {seen.ending for _, seen in ran.told} == {"finished"}


@needs_ray
def test_what_a_lost_node_had_is_run_on_another_one(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1, resources={"accelerator_type:B200": 1})
    cluster.wait_for_nodes()
    lose = partial(cluster.remove_node, node, allow_graceful=False)
    ran = Ran(*["raise_nothing"] * 30, types=("H100", "B200"), after_first=lose)
    assert (ran.error, ran.lost) == (None, 1)
    assert ran.cases == sorted(ran.started)
    assert len(set(ran.cases)) == len(ran.cases) == 30


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_the_run_ends_where_no_actor_is_left() -> None:
    ran = Ran("fine", "end_the_parent", "fine", "fine", workers=1)
    assert isinstance(ran.error, HarnessError)
    assert "expected the Ray actor to answer, and it was lost, with no other left" in str(ran.error)
    assert ran.cases == ["fake:api=fine"]


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_job_that_loses_two_actors_says_nothing_of_its_candidate() -> None:
    ran = Ran("end_the_parent", "fine")
    assert isinstance(ran.error, HarnessError)
    assert "two Ray actors were lost that had it" in str(ran.error)
    assert [seen for case, seen in ran.told if "end_the_parent" in case] == []


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_what_a_worker_printed_comes_back_and_its_case_was_tried_twice() -> None:
    ran = Ran("segfault", "fine", workers=1)
    (_, lost), (_, following) = ran.told
    assert (lost.ending, lost.exit_status, following.ending) == ("crashed", "signal 11 (SIGSEGV)", "finished")
    assert "about to read address 0" in lost.last_output
    assert lost.again is not None
    assert lost.again.attempt == 2


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_mistake_that_a_worker_tells_at_its_start_ends_the_run_with_its_own_words() -> None:
    ran = Ran("fine", "fine", engine="NoDevice")
    assert isinstance(ran.error, UsageError)
    assert str(ran.error) == "no device cpu here"
    assert (ran.told, ran.started) == ([], [])


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_failure_of_gradcheck_costs_its_case_and_no_other() -> None:
    ran = Ran("raise_here", "fine", "fine")
    assert isinstance(ran.error, HarnessError)
    assert "ZeroDivisionError" in str(ran.error)
    assert [seen.ending for _, seen in ran.told] == ["finished", "finished"]


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_variables_of_the_user_hold_on_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_WORKER_TEST", "7")
    assert Ran("fine").environments[0].variables["NVTE_WORKER_TEST"] == "7"


@needs_ray
def test_a_run_that_was_ended_and_killed_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    from test_resume import going, judged

    matrix = tmp_path / "thirteen.toml"
    matrix.write_text(THIRTEEN, "utf-8")
    more = ("--matrix", str(matrix), "--provider", "torch", "--workers", "2")
    on_ray = ("--executor", "ray", "--address", cluster.address)
    run = going(tmp_path / "run", *more, *on_ray)
    run.until(2)
    run.process.terminate()
    assert run.ended().code == 130
    run = going(tmp_path / "run", "--resume", "--workers", "2", *on_ray)
    run.until(5)
    run.process.kill()
    run.ended()
    assert len(judged(run.folder)) < 12
    done = child("run", "--device", "cpu", "--output", str(run.folder), "--resume", cwd=ROOT)
    assert done.code == 0, done.err
    assert Counter(judged(run.folder)).most_common(1)[0][1] == 1
    assert len(judged(run.folder)) == 12


@pytest.mark.parametrize("address", ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"))
def test_an_address_where_nobody_listens_is_told_and_not_waited_for(address: str) -> None:
    with pytest.raises(UsageError, match="expected a Ray cluster that answers"):
        connect(SimpleNamespace(is_initialized=lambda: False), address)


def a_node(processors: int, gpus: int = 0, kind: str = "", *, alive: bool = True) -> dict[str, Any]:
    resources = {"CPU": float(processors), **({"GPU": float(gpus)} if gpus else {})}
    return {"Alive": alive, "Resources": resources | ({f"accelerator_type:{kind}": 1.0} if kind else {})}


MIXED = [a_node(8), a_node(8, 2, "H100"), a_node(8, 1, "B200"), a_node(8, 4, "H100", alive=False)]


def of_type(name: str) -> dict[str, Any]:
    return {"num_cpus": 1, "num_gpus": 1, "max_restarts": 0, "resources": {f"accelerator_type:{name}": 0.001}}


def test_each_gpu_of_the_nodes_that_live_is_a_slot_else_each_processor() -> None:
    gpu, cpu = ({"num_cpus": 1, "num_gpus": number, "max_restarts": 0} for number in (1, 0))
    assert slots(MIXED, Slot()) == slots(MIXED, Slot("all")) == ("cuda:0", [gpu] * 3)
    assert slots(MIXED, Slot("cpu", 5)) == ("cpu", [cpu] * 5)
    assert slots([a_node(2)], Slot()) == ("cpu", [cpu] * 2)


def test_types_have_their_slots_in_turn() -> None:
    h, b = of_type("H100"), of_type("B200")
    assert slots(MIXED, Slot(device_types=("H100", "B200"))) == ("cuda:0", [h, b, h])
    assert slots(MIXED, Slot(device_types=("H100", "B200"), workers=2)) == ("cuda:0", [h, b])
    assert slots(MIXED, Slot(device_types=("B200",))) == ("cuda:0", [b])


WRONG: dict[str, tuple[Slot, str]] = {
    "a type that is not there": (Slot(device_types=("A100",)), "expected a type of this Ray cluster, found B200, H100"),
    "more workers than GPUs": (Slot(workers=4), "expected 4 GPU in the cluster for as many workers, found 3"),
    "a device by its number": (Slot("cuda:1"), "expected cpu, cuda or all"),
}


@pytest.mark.parametrize(("asked", "says"), WRONG.values(), ids=WRONG)
def test_what_the_cluster_has_not_is_told_with_what_it_has(asked: Slot, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        slots(MIXED, asked)


def test_options_that_do_not_go_together_are_told(tmp_path: Path) -> None:
    for more, says in {
        ("--executor", "slurm"): "expected local or ray",
        ("--address", "there:6379"): "add --executor ray",
        ("--device-type", "H100"): "add --executor ray",
    }.items():
        done = typed("run", "--matrix", "smoke", "--provider", "torch", "--output", str(tmp_path / "run"), *more)
        assert done.code == 2
        assert says in " ".join(done.err.split())
        assert not (tmp_path / "run").exists()


def test_where_ray_is_missing_a_run_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = typed("run", "--provider", "torch", "--executor", "ray", "--output", str(tmp_path / "run"))
    assert done.code == 2
    assert "pip install 'gradcheck-cli[ray]'" in done.err
    assert not (tmp_path / "run").exists()
