"""What becomes of a job, of a worker and of the run, through real child processes?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.errors import GradcheckError, HarnessError, UsageError
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.workers.executor import LocalExecutor
from gradcheck_cli.workers.lane import own_seconds
from gradcheck_cli.workers.protocol import exit_status

PATIENCE = 30.0  # seconds: far more than anything here needs


@pytest.fixture(autouse=True)
def engines_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def a_job(api: str, environment: dict[str, str] | None = None, target: str = "misbehaving:build") -> Job:
    return Job(case=Case(provider="fake", api=api), target=target, environment=environment or {})


class Run:
    """What one executor did, with everything it said on the way."""

    def __init__(
        self,
        log_dir: Path,
        engine: str = "Engine",
        timeout: float = PATIENCE,
        start: float = PATIENCE,
        *,
        retry: bool = False,
    ) -> None:
        class Executor(LocalExecutor):
            start_timeout = start

        self.executor = Executor(
            device="cpu", log_dir=log_dir, timeout=timeout, engine=f"misbehaving:{engine}", retry=retry
        )
        self.environments: list[Environment] = []
        self.started: list[str] = []

    def __call__(self, *jobs: str | Job) -> list[Observation]:
        asked = [a_job(job) if isinstance(job, str) else job for job in jobs]
        with self.executor:
            answers = list(
                self.executor.run(asked, lambda job: self.started.append(job.case.api), self.environments.append)
            )
        assert [job for job, _ in answers] == asked
        return [observation for _, observation in answers]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


ENDINGS = {
    "segfault": ("segfault", "crashed", "signal 11 (SIGSEGV)"),
    "abort": ("abort", "crashed", "signal 6 (SIGABRT)"),
    "killed": ("killed", "crashed", "signal 9 (SIGKILL)"),
    "silent success": ("exit_0", "crashed", "exit code 0"),
    "sys.exit": ("sys_exit_7", "crashed", "exit code 7"),
    "a child left behind": ("die_but_leave_a_child", "crashed", "exit code 5"),
    "pipe closed": ("close_the_pipe_and_hang", "crashed", "signal 15 (SIGTERM)"),
}


@pytest.mark.parametrize(("api", "ending", "status"), ENDINGS.values(), ids=ENDINGS)
def test_a_worker_that_ends_without_a_result_is_a_crash_and_the_run_goes_on(
    run: Run, api: str, ending: str, status: str
) -> None:
    lost, following = run(api, "fine")
    assert (lost.ending, lost.exit_status, following.ending) == (ending, status, "finished")
    assert lost.case == f"fake:api={api}"


HANGS = {
    "hang": ("hang", "signal 15 (SIGTERM)"),
    "hang in C, with the lock of the interpreter": ("hang_in_c", "signal 15 (SIGTERM)"),
    "hang that ignores SIGTERM": ("hang_on", "signal 9 (SIGKILL)"),
}


@pytest.mark.parametrize(("api", "status"), HANGS.values(), ids=HANGS)
def test_a_case_over_its_time_is_timed_out_and_the_run_goes_on(tmp_path: Path, api: str, status: str) -> None:
    slow, following = Run(tmp_path, timeout=0.5)(api, "fine")
    assert (slow.ending, slow.exit_status, following.ending) == ("timed_out", status, "finished")
    assert 0.5 <= slow.seconds < PATIENCE


def test_the_last_output_of_a_crash_holds_what_was_printed_and_the_python_stack(run: Run) -> None:
    (crashed,) = run("segfault")
    assert "about to read address 0" in crashed.last_output
    assert "in segfault" in crashed.last_output


def test_the_last_output_of_a_hang_says_where_it_hung(tmp_path: Path) -> None:
    (slow,) = Run(tmp_path, timeout=0.5)("hang")
    assert "waiting for a collective" in slow.last_output
    assert "in hang" in slow.last_output


def test_the_last_output_begins_with_the_case_and_not_before(run: Run) -> None:
    _, crashed = run("noise", "segfault")
    assert crashed.last_output.startswith("about to read address 0")


def test_much_last_output_is_cut_to_its_end(tmp_path: Path) -> None:
    (slow,) = Run(tmp_path, timeout=0.5)("noise_and_hang")
    assert 3000 < len(slow.last_output) <= 4000
    assert "in noise_and_hang" in slow.last_output


def test_lines_on_stdout_that_look_like_results_are_not_results(run: Run) -> None:
    (seen,) = run("noise")
    assert (seen.case, seen.ending) == ("fake:api=noise", "finished")


def test_an_observation_of_megabytes_arrives_whole(run: Run) -> None:
    (seen,) = run("five_megabytes")
    assert seen.warnings == ["w" * 5_000_000]


def test_a_candidate_that_reads_stdin_finds_it_empty_and_eats_no_job(run: Run) -> None:
    reader, following = run("stdin", "fine")
    assert (reader.effective["says"], following.ending) == ("nothing", "finished")


def test_a_child_that_a_candidate_left_in_the_workers_loop_answers_nothing(run: Run) -> None:
    seen = run("fine", "fork_and_return", "fine", "noise")
    assert [one.case.partition("=")[2] for one in seen] == ["fine", "fork_and_return", "fine", "noise"]
    assert len({one.effective["pid"] for one in seen}) == 1


def test_one_worker_serves_all_cases_of_one_environment(run: Run) -> None:
    seen = run("fine", "stdin", "fine")
    assert len({observation.effective["pid"] for observation in seen}) == 1
    assert len(run.environments) == 1


def test_a_sticky_error_costs_the_worker(run: Run) -> None:
    first, second = run("poison", "fine")
    assert first.effective["pid"] != second.effective["pid"]


def test_other_variables_get_another_worker(run: Run) -> None:
    run("fine", a_job("fine", {"WORKER_TEST_A": "1"}), a_job("fine", {"WORKER_TEST_A": "1"}))
    assert [environment.variables for environment in run.environments] == [{}, {"WORKER_TEST_A": "1"}]


def test_a_variable_that_the_user_has_set_wins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TEST_A", "the user's")
    run(a_job("fine", {"WORKER_TEST_A": "ours", "WORKER_TEST_B": "ours"}))
    assert run.environments[0].variables == {"WORKER_TEST_A": "the user's", "WORKER_TEST_B": "ours"}


def test_a_variable_by_which_a_case_asks_wins_over_the_users(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TEST_A", "the user's")
    asked = msgspec.structs.replace(a_job("fine", {"WORKER_TEST_B": "ours"}), switches={"WORKER_TEST_A": "asked"})
    run(asked, a_job("fine", {"WORKER_TEST_B": "ours"}))
    assert [environment.variables for environment in run.environments] == [
        {"WORKER_TEST_A": "asked", "WORKER_TEST_B": "ours"},
        {"WORKER_TEST_A": "the user's", "WORKER_TEST_B": "ours"},
    ]


def test_jobs_under_the_same_variables_run_together_in_one_worker(run: Run) -> None:
    asked = [
        a_job("fine"),
        a_job("fine", {"WORKER_TEST_A": "1"}),
        a_job("stdin"),
        a_job("noise", {"WORKER_TEST_A": "1"}),
    ]
    run(*pipeline.alike(asked))
    assert run.started == ["fine", "stdin", "fine", "noise"]
    assert [environment.variables for environment in run.environments] == [{}, {"WORKER_TEST_A": "1"}]


CUTLASS = "te:api=module:path=cutlass"
SWITCHES = {
    "asked": (CUTLASS, "", {"NVTE_USE_CUTLASS_GROUPED_GEMM": "1"}),
    "asked, and set by the user": (CUTLASS, "1", {}),
    "asked against the user": (CUTLASS, "0", {"NVTE_USE_CUTLASS_GROUPED_GEMM": "1"}),
    "legacy": ("te:api=module:path=legacy", "", {}),
    "legacy against the user": ("te:api=module:path=legacy", "1", {"NVTE_USE_CUTLASS_GROUPED_GEMM": "0"}),
    "native, which may fall back": ("te:api=module:path=native", "1", {"NVTE_USE_CUTLASS_GROUPED_GEMM": "0"}),
    "left open": ("te:api=module", "1", {}),
}


@pytest.mark.parametrize(("case", "users", "switches"), tuple(SWITCHES.values()), ids=SWITCHES)
def test_a_path_is_asked_by_the_variables_that_would_otherwise_not_be_so(
    case: str, users: str, switches: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVTE_USE_CUTLASS_GROUPED_GEMM", raising=False)
    if users:
        monkeypatch.setenv("NVTE_USE_CUTLASS_GROUPED_GEMM", users)
    job = pipeline.job(Case.parse(case))
    assert (job.switches, job.environment) == (switches, plugins.BUILT_IN["te"].environment)


def test_every_case_is_announced_before_it_runs(run: Run) -> None:
    run("fine", "exit_0", "stdin")
    assert run.started == ["fine", "exit_0", "stdin"]


def test_a_worker_outlives_a_run_and_serves_the_next(tmp_path: Path) -> None:
    with Run(tmp_path).executor as executor:
        pids = [seen.effective["pid"] for _ in "ab" for _, seen in executor.run([a_job("fine")], ignore, ignore)]
    assert pids[0] == pids[1]


def test_the_worker_that_was_asked_where_it_runs_then_runs_the_cases(run: Run, tmp_path: Path) -> None:
    asked = run.executor.environment(Variables({"WORKER_TEST_A": "1"}), ["misbehaving:build"])
    run(a_job("fine", {"WORKER_TEST_A": "1"}))
    assert (asked.variables, len(list(tmp_path.glob("worker-*.log")))) == ({"WORKER_TEST_A": "1"}, 1)


def test_a_candidate_that_a_worker_has_not_imported_gets_a_new_worker(tmp_path: Path) -> None:
    jobs = a_job("fine"), a_job("fine", target="another:build")
    with Run(tmp_path).executor as executor:
        pids = [seen.effective["pid"] for job in jobs for _, seen in executor.run([job], ignore, ignore)]
    assert pids[0] != pids[1]


def test_a_run_left_in_the_middle_of_a_case_cannot_answer_the_next(tmp_path: Path) -> None:
    executor = Run(tmp_path).executor
    with executor:
        next(executor.run([a_job("fine")], ignore, ignore))
        executor.lanes[0].worker.send(a_job("stdin"))  # type: ignore[union-attr]
        ((_, seen),) = executor.run([a_job("fine")], ignore, ignore)
    assert seen.case == "fake:api=fine"


def test_a_worker_that_died_between_two_cases_is_not_the_next_cases_fault(tmp_path: Path) -> None:
    with Run(tmp_path).executor as executor:
        answers = executor.run([a_job("fine"), a_job("fine")], ignore, ignore)
        pid = int(next(answers)[1].effective["pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not executor.lanes[0].worker.serves(Variables(), []))  # type: ignore[union-attr]
        assert next(answers)[1].ending == "finished"


STARTS = {
    "usage": ("NoDevice", UsageError, "no device cpu here"),
    "harness": ("NoMemory", HarnessError, "no memory left on the device"),
    "broken": ("BrokenImport", HarnessError, "undefined symbol: cublasLtGroupedMatmul"),
    "no such engine": ("Missing", HarnessError, "has no attribute 'Missing'"),
    "garbage": ("SpeaksTooEarly", HarnessError, "said something else"),
}


@pytest.mark.parametrize(("engine", "kind", "message"), STARTS.values(), ids=STARTS)
def test_a_worker_that_cannot_start_ends_the_run_with_its_reason(
    tmp_path: Path, engine: str, kind: type[GradcheckError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Run(tmp_path, engine)("fine")


def test_a_worker_that_hangs_at_its_start_ends_the_run_with_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"not ready after 1\.5 s(.|\n)*initialising NVML"):
        Run(tmp_path, "HangsAtStart", start=1.5)("fine")


def test_a_replacement_that_cannot_start_ends_the_run_after_the_crash_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TEST_FLAG", str(tmp_path / "flag"))
    with Run(tmp_path, "StartsOnce").executor as executor:
        answers = executor.run([a_job("exit_0"), a_job("fine")], ignore, ignore)
        assert next(answers)[1].ending == "crashed"
        with pytest.raises(HarnessError, match="fell off the bus"):
            next(answers)


OWN_FAILURES = {
    "the engine raises": ("raise_here", "ZeroDivisionError: in the engine itself"),
    "no such behaviour": ("unheard_of", "AttributeError"),
}


@pytest.mark.parametrize(("api", "message"), OWN_FAILURES.values(), ids=OWN_FAILURES)
def test_a_failure_of_gradcheck_itself_is_never_a_verdict(run: Run, api: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message) as caught:
        run(api, "fine")
    assert f"gradcheck run --case 'fake:api={api}'" in str(caught.value)


def test_a_reason_that_the_engine_gives_during_a_case_is_the_whole_message(run: Run) -> None:
    with pytest.raises(HarnessError, match=r"^no memory for the reference$"):
        run("no_memory", "fine")


def test_a_worker_imports_nothing_from_the_current_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").touch()
    monkeypatch.chdir(tmp_path)
    (seen,) = run("import_colours")
    assert str(tmp_path) not in str(seen.effective["says"])


def test_closing_leaves_neither_a_process_nor_a_file_descriptor(run: Run) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    seen = run("exit_0", "fine")
    assert len(list(Path("/dev/fd").iterdir())) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen[1].effective["pid"]), 0)


def test_what_a_dead_worker_had_started_dies_with_it(run: Run, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    run(a_job("die_but_leave_a_holder", {"WORKER_TEST_LOCK": str(lock)}))
    assert lock.read_text() == "locked"
    wait_until(lambda: can_be_locked(lock))


DEATHS = {
    "killed": ("hold_and_hang", signal.SIGKILL, -9),
    "killed, and the case hangs in C": ("hold_and_hang_in_c", signal.SIGKILL, -9),
    "interrupted": ("hold_and_hang", signal.SIGINT, -2),
}


@pytest.mark.parametrize(("api", "how", "returncode"), DEATHS.values(), ids=DEATHS)
def test_a_worker_in_a_hanging_case_dies_with_its_parent(
    tmp_path: Path, api: str, how: signal.Signals, returncode: int
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    job = to_json(a_job(api, {"WORKER_TEST_LOCK": str(lock)}))
    parent = subprocess.Popen(
        [sys.executable, "-c", "import misbehaving, sys; misbehaving.parent(*sys.argv[1:])", str(tmp_path), job],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: lock.read_text() != "")
    parent.send_signal(how)
    assert parent.wait(PATIENCE) == returncode
    wait_until(lambda: can_be_locked(lock))


STATUSES = {
    "exit": (3, "exit code 3"),
    "signal": (-11, "signal 11 (SIGSEGV)"),
    "real-time": (-40, "signal 40 (no name)"),
}


@pytest.mark.parametrize(("returncode", "words"), STATUSES.values(), ids=STATUSES)
def test_an_exit_status_is_said_in_words(returncode: int, words: str) -> None:
    assert exit_status(returncode) == words


def ignore(_: object) -> None:
    """Hear nothing."""


def can_be_locked(path: Path) -> bool:
    """Whether nobody holds this lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that must become true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_time_for_gradchecks_own_work_grows_with_the_case() -> None:
    small, large = Case.parse("torch:api=loop"), Case.parse("torch:api=loop:in_features=2048:out_features=2048")
    assert own_seconds(small) < 0.5
    assert 90 < own_seconds(large) < 120
    assert own_seconds(large, mutants=40) == 2 * own_seconds(large)
