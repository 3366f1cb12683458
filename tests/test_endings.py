"""Does a case that ends badly cost a verdict, or another case? Through real workers, as a run has them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
import torch
from in_process import engine
from test_executor import Run, a_job, can_be_locked, ignore, wait_until

from gradcheck_cli import pipeline
from gradcheck_cli.compute import trainer, trial
from gradcheck_cli.compute.trial import of_cuda
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.twice import twice
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.workers import output
from gradcheck_cli.workers.executor import MOST_FAILURES
from gradcheck_cli.workers.process import Place
from gradcheck_cli.workers.strays import MARK, kill_marked, new_mark, of_folder


@pytest.fixture(autouse=True)
def engines_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def judged(observation: Observation) -> Verdict:
    return conclude(Case.parse("torch:api=loop"), observation, Environment())


GARBAGE = {
    "a line that is no message": ("scribble", "cannot be read"),
    "a number that JSON has not": ("infinite", "cannot be read"),
    "another case's observation": ("other_case", "something else: te:api=op"),
}


@pytest.mark.parametrize(("api", "told"), GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_is_none_is_a_crash_and_the_run_goes_on(run: Run, api: str, told: str) -> None:
    lost, following = run(api, "fine")
    assert (lost.ending, lost.case, following.ending) == ("lost", f"fake:api={api}", "finished")
    (finding,) = judged(lost).findings
    assert (finding.outcome, finding.diagnosis) == (Outcome.CRASHED, "garbled answer")
    assert told in finding.why


def test_what_a_worker_says_unasked_is_nobodys_answer(tmp_path: Path) -> None:
    with Run(tmp_path).executor as executor:
        answers = executor.run([a_job("speak_unasked"), a_job("fine")], ignore, ignore)
        next(answers)
        worker = executor.lanes[0].worker
        assert worker is not None
        wait_until(lambda: not worker.serves(Variables(), []))
        assert next(answers)[1].ending == "finished"


def test_what_a_killed_run_left_is_ended_by_its_folder_and_nothing_else_is(tmp_path: Path) -> None:
    folders = tmp_path / "run", tmp_path / "run2"
    left, others = (
        subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: new_mark(folder)}, start_new_session=True)
        for folder in folders
    )
    try:
        # A process has its variables when it has begun its program.
        wait_until(lambda: MARK.encode() in Path(f"/proc/{left.pid}/environ").read_bytes())
        assert kill_marked(of_folder(folders[0])) == 1
        assert left.wait(30) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        for process in (left, others):
            process.kill()
            process.wait()


@pytest.mark.parametrize("api", ("leave_a_daemon", "die_but_leave_a_daemon"))
def test_what_a_case_started_in_a_session_of_its_own_dies_with_its_worker(run: Run, tmp_path: Path, api: str) -> None:
    lock = tmp_path / "lock"
    run(a_job(api, {"WORKER_TEST_LOCK": str(lock)}), "fine")
    assert lock.read_text() == "locked"
    wait_until(lambda: can_be_locked(lock))


def test_a_flood_on_stderr_fills_no_disk_and_its_end_is_kept(run: Run, tmp_path: Path) -> None:
    flooded, following = run("flood_and_crash", "fine")
    assert (flooded.exit_status, following.ending) == ("signal 11 (SIGSEGV)", "finished")
    assert "in flood_and_crash" in flooded.last_output
    log = (tmp_path / "worker-1.log").read_text("utf-8")
    assert output.WHOLE < len(log) < output.WHOLE + output.TAIL + 100
    assert "bytes are left out here" in log
    assert "in flood_and_crash" in log


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="the kernel does not say whom it would kill")
def test_where_memory_ends_a_worker_goes_before_whoever_waits_for_it(run: Run) -> None:
    (seen,) = run("first_to_go")
    assert seen.effective["says"] == "1000"
    assert Path("/proc/self/oom_score_adj").read_text("ascii").strip() != "1000"


def test_a_worker_that_prints_no_more_goes_on(run: Run) -> None:
    seen = run("print_no_more", "fine")
    assert len({one.effective["pid"] for one in seen}) == 1


def retrying(log_dir: Path, timeout: float = 30.0) -> Run:
    return Run(log_dir, timeout=timeout, retry=True)


ENDINGS = {
    "segfault": ("segfault", "signal 11 (SIGSEGV)"),
    "abort": ("abort", "signal 6 (SIGABRT)"),
    "killed": ("killed", "signal 9 (SIGKILL)"),
    "silent success": ("exit_0", "exit code 0"),
    "garbage": ("scribble", "garbled answer"),
}


@pytest.mark.parametrize(("api", "diagnosis"), ENDINGS.values(), ids=ENDINGS)
def test_a_case_that_cost_its_worker_is_tried_once_more_and_reproduced(
    tmp_path: Path, api: str, diagnosis: str
) -> None:
    run = retrying(tmp_path)
    lost, following = run(api, "fine")
    assert lost.again is not None
    assert (lost.attempt, lost.again.attempt, following.again) == (1, 2, None)
    verdict = judged(lost)
    assert (verdict.outcome, verdict.retried, verdict.reproduced) == (Outcome.CRASHED, Outcome.CRASHED, True)
    assert verdict.findings[0].diagnosis == diagnosis
    assert any("the same again" in note for note in verdict.notes)
    assert run.started == [api, "fine"]


def test_a_hang_is_tried_once_more_too(tmp_path: Path) -> None:
    slow, following = retrying(tmp_path, timeout=0.5)("hang", "fine")
    verdict = judged(slow)
    assert (verdict.outcome, verdict.retried, verdict.reproduced) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT, True)
    assert following.ending == "finished"


def test_a_crash_that_does_not_come_again_stays_a_crash_and_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TEST_FLAG", str(tmp_path / "flag"))
    (lost,) = retrying(tmp_path)("crash_once")
    assert (lost.ending, lost.again and lost.again.ending) == ("crashed", "finished")
    verdict = judged(lost)
    assert (verdict.outcome, verdict.reproduced) == (Outcome.CRASHED, False)
    assert any("not reproduced" in note for note in verdict.notes)


@pytest.mark.parametrize("api", ("poison", "suspect"))
def test_an_error_of_cuda_is_tried_once_more_and_the_next_case_gets_a_third_worker(tmp_path: Path, api: str) -> None:
    poisoned, following = retrying(tmp_path)(api, "fine")
    assert poisoned.again is not None
    assert len({one.effective["pid"] for one in (poisoned, poisoned.again, following)}) == 3


def test_a_second_try_that_cannot_start_loses_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TEST_FLAG", str(tmp_path / "flag"))
    with Run(tmp_path, "StartsOnce", retry=True).executor as executor:
        answers = executor.run([a_job("exit_0"), a_job("fine")], ignore, ignore)
        _, seen = next(answers)
        assert (seen.ending, seen.again) == ("crashed", None)


OF_CUDA: dict[str, tuple[Exception, bool]] = {
    "torch": (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
    "te": (
        RuntimeError("/x/common/cuda_runtime.cpp:20 in function f: CUDA Error: unspecified launch failure"),
        True,
    ),
    "triton": (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), True),
    "cublas": (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), True),
    "memory": (torch.OutOfMemoryError("CUDA out of memory"), True),
    "a refusal": (RuntimeError("cuBLAS Error: the requested functionality is not supported"), False),
    "a mistake": (ValueError("expected two tensors, of CUDA or not"), False),
}


@pytest.mark.parametrize(("error", "expected"), OF_CUDA.values(), ids=OF_CUDA)
def test_an_error_of_cuda_is_told_from_others_also_where_another_one_came_of_it(
    error: Exception, *, expected: bool
) -> None:
    assert of_cuda(error) is expected
    wrapped = ValueError("in the layer")
    wrapped.__cause__ = error
    assert of_cuda(wrapped) is expected


@pytest.mark.parametrize("captured", (True, False))
def test_whatever_raises_with_a_cuda_graph_costs_its_worker(monkeypatch: pytest.MonkeyPatch, *, captured: bool) -> None:
    monkeypatch.setattr(trial, "answers", lambda _: True)
    with pytest.raises(trial.CandidateRaised) as raised, trial.on_trial("x", torch.device("cuda"), captured=captured):
        raise ValueError("no error of CUDA")
    assert raised.value.seen.suspect is captured


@pytest.mark.parametrize("how", ("none", "torch"))
def test_a_trainer_says_that_its_case_has_a_cuda_graph(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    told: set[bool] = set()

    def noted(during: str, device: torch.device, *, captured: bool) -> AbstractContextManager[None]:
        told.add(captured)
        return trial.on_trial(during, device, captured=captured)

    monkeypatch.setattr(trainer, "on_trial", noted)
    job = pipeline.job(Case.parse(f"torch:api=loop:m_splits=3,5:in_features=16:out_features=24:cuda_graph={how}"))
    assert engine(job.target).run(job).ending == ("finished" if how == "none" else "raised")
    assert told == {how != "none"}


def a_verdict(outcome: Outcome) -> Verdict:
    finding = Finding(slot="case", outcome=outcome, why="why")
    return Verdict(case="te:api=op", axes={}, outcome=outcome, findings=[finding])


SECOND = {
    "the same": (Outcome.CRASHED, Outcome.CRASHED, Outcome.CRASHED, True),
    "another": (Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.CRASHED, False),
    "a pass, which covers nothing": (Outcome.CRASHED, Outcome.PASSED, Outcome.CRASHED, False),
    "a refusal that covers nothing": (Outcome.REFUSED, Outcome.CRASHED, Outcome.CRASHED, False),
    "a refusal twice": (Outcome.REFUSED, Outcome.REFUSED, Outcome.REFUSED, True),
}


@pytest.mark.parametrize(("first", "second", "told", "reproduced"), SECOND.values(), ids=SECOND)
def test_of_two_tries_the_first_is_told_unless_it_would_cover_the_second(
    first: Outcome, second: Outcome, told: Outcome, *, reproduced: bool
) -> None:
    verdict = twice(a_verdict(first), a_verdict(second))
    assert (verdict.outcome, verdict.retried, verdict.reproduced) == (told, second, reproduced)


def test_an_error_that_comes_again_in_other_words_is_reproduced_and_told_so() -> None:
    first, second = (
        msgspec.structs.replace(
            a_verdict(Outcome.RAISED),
            findings=[Finding(slot="case", outcome=Outcome.RAISED, why=f"raised {name}", diagnosis=name)],
        )
        for name in ("AcceleratorError", "RuntimeError")
    )
    verdict = twice(first, second)
    assert (verdict.retried, verdict.reproduced) == (Outcome.RAISED, True)
    assert verdict.notes[-1].endswith("RAISED again, in other words")
    assert twice(first, first).notes[-1].endswith("the same again")


def many(tmp_path: Path, workers: int) -> Run:
    run = Run(tmp_path, retry=True)
    run.executor = type(run.executor)(
        device=[Place("cpu")] * workers, log_dir=tmp_path, timeout=5.0, engine="misbehaving:Engine", retry=True
    )
    return run


MIXED = ["fine", "segfault", "stdin", "exit_0", "noise", "fine", "killed", "raise_nothing", "scribble", "fine"]


@pytest.mark.parametrize("workers", (1, 2, 3))
def test_however_many_workers_there_are_each_case_is_seen_once_and_alike(tmp_path: Path, workers: int) -> None:
    jobs = [distinct(api, number) for number, api in enumerate(MIXED)]
    with many(tmp_path, workers).executor as executor:
        seen = {str(job.case): one for job, one in executor.run(jobs, ignore, ignore)}
    assert set(seen) == {str(job.case) for job in jobs}
    assert {one.case.split(":")[1]: (one.ending, one.exit_status) for one in seen.values()} == {
        "api=fine": ("finished", ""),
        "api=stdin": ("finished", ""),
        "api=noise": ("finished", ""),
        "api=raise_nothing": ("finished", ""),
        "api=segfault": ("crashed", "signal 11 (SIGSEGV)"),
        "api=killed": ("crashed", "signal 9 (SIGKILL)"),
        "api=exit_0": ("crashed", "exit code 0"),
        "api=scribble": ("lost", next(one.exit_status for one in seen.values() if one.ending == "lost")),
    }


def distinct(api: str, seed: int) -> Job:
    return msgspec.structs.replace(a_job(api), case=Case(provider="fake", api=api, seed=seed))


def test_two_workers_run_at_once_and_a_hang_holds_up_nobody_else(tmp_path: Path) -> None:
    jobs = [distinct(api, number) for number, api in enumerate(["hang", "fine", "fine", "fine"])]
    with many(tmp_path, 2).executor as executor:
        order = [job.case.api for job, _ in executor.run(jobs, ignore, ignore)]
    assert order == ["fine", "fine", "fine", "hang"]


def test_a_place_whose_worker_cannot_start_leaves_its_cases_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TEST_FLAG", str(tmp_path / "flag"))
    run = Run(tmp_path, "StartsOnce")
    places = [Place("cpu"), Place("cpu")]
    with type(run.executor)(device=places, log_dir=tmp_path, engine="misbehaving:StartsOnce") as executor:
        answers = executor.run([distinct("fine", number) for number in range(6)], ignore, ignore)
        seen = [next(answers)[1].ending for _ in range(6)]
        assert seen == ["finished"] * 6
        with pytest.raises(Exception, match="fell off the bus"):
            next(answers)


def test_a_failure_of_gradcheck_itself_costs_its_case_alone_and_is_raised_at_the_end(tmp_path: Path) -> None:
    with Run(tmp_path).executor as executor:
        answers = executor.run([a_job(api) for api in ("no_memory", "fine", "raise_here", "stdin")], ignore, ignore)
        assert [next(answers)[1].case for _ in "ab"] == ["fake:api=fine", "fake:api=stdin"]
        with pytest.raises(HarnessError, match=r"^no memory for the reference$"):
            next(answers)


def test_a_gradcheck_that_fails_on_every_case_does_not_try_them_all(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(HarnessError, match="in the engine itself"):
        run(*["raise_here"] * 9)
    assert len(run.started) == MOST_FAILURES


def test_a_place_has_variables_of_its_own_and_the_user_s_win_over_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_TEST_A", "the user's")
    place = Place("cpu", Variables({"WORKER_TEST_A": "ours", "WORKER_TEST_B": "ours"}, {"WORKER_TEST_C": "ours"}))
    with type(Run(tmp_path).executor)(device=[place], log_dir=tmp_path, engine="misbehaving:Engine") as executor:
        where: list[Environment] = []
        list(executor.run([a_job("fine")], ignore, where.append))
    assert where[0].variables == {"WORKER_TEST_A": "the user's", "WORKER_TEST_B": "ours", "WORKER_TEST_C": "ours"}
    assert "WORKER_TEST_C" not in os.environ
