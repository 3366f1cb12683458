"""Is nothing lost, and nothing run twice, whatever ends a run? With real processes, on plain torch."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import ROOT, Done, child, typed, variables

# Some twenty tiny cases, of which none is slow.
TINY = """
[[block]]
provider = ["torch"]
api = ["loop"]
dtype = ["bf16", "fp32"]
bias = [0, 1]
frozen_input = [0, 1]
fuse_wgrad_accumulation = [0, 1]
in_features = [16]
out_features = [24]
m_splits = ["1,2"]
num_gemms = [2]
"""
CASES = 16


def lines(folder: Path, event: str = "") -> list[dict[str, Any]]:
    every = [json.loads(line) for line in (folder / "journal.jsonl").read_text("utf-8").splitlines()]
    return [line for line in every if event in ("", line["event"])]


def judged(folder: Path) -> list[str]:
    return [line["verdict"]["case"] for line in lines(folder, "verdict")]


def report(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    return read


class Going(NamedTuple):
    """A run that goes on now, in a session of its own."""

    process: subprocess.Popen[str]
    folder: Path

    def until(self, verdicts: int) -> None:
        """Wait for so many verdicts in the journal."""
        journal, end = self.folder / "journal.jsonl", time.monotonic() + 60
        while not journal.exists() or journal.read_text("utf-8").count('"event":"verdict"') < verdicts:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < end, "no verdict in a minute"
            time.sleep(0.01)

    def ended(self) -> Done:
        out, err = self.process.communicate(timeout=60)
        return Done(self.process.returncode, out, err)


def going(folder: Path, *more: str, first: tuple[str, ...] = (), **own: str) -> Going:
    command = [*first, sys.executable, "-m", "gradcheck_cli", "run", "--device", "cpu", "--output", str(folder), *more]
    process = subprocess.Popen(
        ["env", "--default-signal=INT,HUP,TERM", *command],
        cwd=ROOT,
        env=variables(**own),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Going(process, folder)


def resumed(folder: Path, *more: str, **own: str) -> Done:
    return child("run", "--device", "cpu", "--output", str(folder), "--resume", *more, cwd=ROOT, **own)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("matrix") / "tiny.toml"
    file.write_text(TINY, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def killed(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed while a case was in flight: not to be changed, but copied."""
    run = going(tmp_path_factory.mktemp("killed") / "run", "--matrix", str(matrix), "--workers", "2")
    run.until(3)
    os.killpg(run.process.pid, signal.SIGKILL)
    run.ended()
    return run.folder


@pytest.fixture
def cut(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same matrix in one worker, to its end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert child("run", "--device", "cpu", "--matrix", str(matrix), "--output", str(folder)).code == 0
    return folder


@pytest.fixture(scope="module")
def again(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """The killed run taken up again, by its folder's name alone."""
    folder = shutil.copytree(killed, tmp_path_factory.mktemp("again") / "run")
    return resumed(folder), folder


def test_a_run_that_goes_on_executes_exactly_the_rest(again: tuple[Done, Path], killed: Path) -> None:
    done, folder = again
    assert done.code == 0
    before = judged(killed)
    assert judged(folder)[: len(before)] == before
    assert Counter(judged(folder)) == dict.fromkeys(judged(folder), 1)
    assert len(judged(folder)) == CASES
    after = lines(folder)[len(lines(killed)) :]
    assert after[0]["event"] == "resumed"
    assert {line["case"] for line in after if line["event"] == "started"} == set(judged(folder)) - set(before)


def test_what_was_in_flight_is_named_and_run_again(again: tuple[Done, Path], killed: Path) -> None:
    started = [line["case"] for line in lines(killed, "started")]
    flying = [case for case in started if case not in judged(killed)]
    assert flying
    done, folder = again
    assert f"in flight when it ended, and run again: {', '.join(flying)}" in done.err
    assert [line["in_flight"] for line in lines(folder, "resumed")] == [flying]


def without_time(folder: Path) -> list[dict[str, Any]]:
    return [{**verdict, "seconds": 0} for verdict in report(folder)["verdicts"]]


def test_the_verdicts_are_those_of_a_run_of_one_worker_in_the_order_of_the_matrix(
    again: tuple[Done, Path], whole: Path
) -> None:
    assert without_time(again[1]) == without_time(whole)


def test_what_was_seen_can_be_judged_again(again: tuple[Done, Path]) -> None:
    done = typed("judge", str(again[1]))
    assert (done.code, done.err) == (0, "")


def test_a_run_that_is_over_has_nothing_left_and_ends_as_it_did(again: tuple[Done, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(again[1], tmp_path / "run")
    done = typed("run", "--output", str(folder), "--resume")
    assert done.code == 0
    assert f"0 of {CASES} cases of {folder} are left" in done.err
    assert without_time(folder) == without_time(again[1])


def test_a_torn_line_is_told_and_dropped(cut: Path) -> None:
    with (cut / "journal.jsonl").open("ab") as journal, (cut / "observations.jsonl").open("ab") as observations:
        journal.write(b'{"event":"verdict","sche')
        observations.write(b'{"schema":2,"case":"torch:api=l')
    done = resumed(cut)
    assert done.code == 0
    assert "journal.jsonl broke off in its last line: 24 bytes are dropped" in done.err
    assert len(judged(cut)) == len(lines(cut, "verdict")) == CASES
    assert typed("judge", str(cut)).code == 0


def test_what_was_seen_without_a_verdict_is_seen_again_and_not_twice(cut: Path, whole: Path) -> None:
    flying = next(line["case"] for line in lines(cut, "started") if line["case"] not in judged(cut))
    every = (whole / "observations.jsonl").read_text("utf-8").splitlines(keepends=True)
    with (cut / "observations.jsonl").open("a", encoding="utf-8") as observations:
        observations.write(next(line for line in every if json.loads(line)["case"] == flying))
    assert resumed(cut).code == 0
    seen = [json.loads(line)["case"] for line in (cut / "observations.jsonl").read_text("utf-8").splitlines()]
    assert sorted(seen) == sorted(judged(cut))


def test_a_report_of_how_it_ended_before_does_not_outlive_the_run_that_goes_on(cut: Path) -> None:
    (cut / "report.json").write_text("that of Ctrl-C")
    run = going(cut, "--resume")
    run.until(len(judged(cut)) + 1)
    os.killpg(run.process.pid, signal.SIGKILL)
    run.ended()
    done = typed("report", str(cut))
    assert f"executed {len(judged(cut))} of {CASES} asked" in done.out


def altered(folder: Path, old: str, new: str) -> tuple[str, ...]:
    journal = folder / "journal.jsonl"
    text = journal.read_text("utf-8")
    assert old in text
    journal.write_text(text.replace(old, new), encoding="utf-8")
    return ()


CHANGED = {
    "another matrix": (lambda _: ("--matrix", "smoke"), "matrix: the run began with '.*tiny.toml', now it is 'smoke'"),
    "another selection": (lambda _: ("-k", "bias"), "expression: the run began with '', now it is 'bias'"),
    "another time limit": (lambda _: ("--timeout", "3"), r"timeout: the run began with 60\.0, now it is 3\.0"),
    "another gradcheck": (
        lambda folder: altered(folder, "(sources ", "(sources 0"),
        r"gradcheck: the run began with '0\.1\.0 \(sources 0\w+\)', now it is '0\.1\.0 \(sources \w+\)'",
    ),
    "another torch": (
        lambda folder: altered(folder, '"torch":"', '"torch":"1.'),
        r"torch: the run began with 1\..*, now it is ",
    ),
    "another processor": (lambda folder: altered(folder, '"device_name":"', '"device_name":"not '), "device: "),
    "a matrix that lost cases and has others": (
        lambda folder: altered(folder, '"cases":["torch:api=loop:', '"cases":["torch:api=loop:seed=9:'),
        r"matrix: 1 of its cases are gone: torch:api=loop:seed=9(.|\n)*matrix: 1 of its cases are new: torch:api=loop:",
    ),
}


@pytest.mark.parametrize(("change", "told"), CHANGED.values(), ids=CHANGED)
def test_what_is_not_as_it_was_is_named_and_nothing_is_run(cut: Path, change: Any, told: str) -> None:
    more = change(cut)
    before = {path.name: path.read_bytes() for path in cut.glob("*.json*")}
    done = typed("run", "--device", "cpu", "--output", str(cut), "--resume", *more)
    assert done.code == 2
    assert f"expected the run in {cut} to go on as it began" in done.err
    assert re.search(told, done.err)
    assert {path.name: path.read_bytes() for path in cut.glob("*.json*")} == before


def test_a_variable_that_changes_what_a_library_does_is_one_of_these(cut: Path) -> None:
    done = resumed(cut, NVTE_FRAMEWORK="other")
    assert done.code == 2
    assert "NVTE_FRAMEWORK: the run began with none, now it is other" in done.err


def test_what_is_typed_again_as_it_was_is_no_change(cut: Path, matrix: Path) -> None:
    assert resumed(cut, "--matrix", str(matrix), "--seed", "0", "--workers", "3").code == 0


def test_where_nothing_has_begun_the_run_begins(matrix: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    done = resumed(folder, "--matrix", str(matrix), "-k", "bias and frozen_input and dtype=fp32")
    assert done.code == 0
    assert f"expected a run in {folder}, found none; it begins" in done.err
    assert len(judged(folder)) == 2


def test_without_a_folder_there_is_nothing_to_go_on_with() -> None:
    assert typed("run", "--resume").err.startswith("gradcheck: --resume: expected the folder of the run")


def test_a_journal_of_an_older_gradcheck_says_too_little_to_go_on(cut: Path) -> None:
    first, *rest = (cut / "journal.jsonl").read_text("utf-8").splitlines(keepends=True)
    opened = {name: value for name, value in json.loads(first).items() if name != "settings"}
    (cut / "journal.jsonl").write_text("".join([json.dumps(opened) + "\n", *rest]), encoding="utf-8")
    done = typed("run", "--output", str(cut), "--resume")
    assert (done.code, "an older gradcheck wrote it" in done.err) == (2, True)


def test_a_second_run_in_a_folder_where_one_goes_on_is_refused(tmp_path: Path) -> None:
    first = going(tmp_path / "run", "--case", "faults:api=hang", "--quiet")
    while not (tmp_path / "run" / "journal.jsonl").exists() or not lines(tmp_path / "run", "started"):
        time.sleep(0.05)
    second = typed("run", "--output", str(tmp_path / "run"), "--resume")
    assert second.code == 2
    assert "another gradcheck writes to it now" in second.err
    third = typed("run", "--output", str(tmp_path / "run"), "--case", "torch:api=loop")
    assert (third.code, "is there already" in third.err) == (2, True)
    os.killpg(first.process.pid, signal.SIGKILL)  # and no file is left that would have to be removed
    first.ended()
    assert typed("run", "--output", str(tmp_path / "run"), "--resume", "--case", "torch:api=loop").code == 2
    assert "another gradcheck" not in typed("run", "--output", str(tmp_path / "run"), "--resume", "--seed", "1").err


def test_ctrl_c_ends_two_workers_in_good_order_and_the_rest_runs_later(matrix: Path, tmp_path: Path) -> None:
    run = going(tmp_path / "run", "--matrix", str(matrix), "--workers", "2")
    run.until(3)
    os.killpg(run.process.pid, signal.SIGINT)
    done = run.ended()
    assert (done.code, done.err) == (130, "")
    assert report(run.folder)["exit_code"] == 130
    assert resumed(run.folder).code == 0
    assert Counter(judged(run.folder)) == dict.fromkeys(judged(run.folder), 1)
    assert len(judged(run.folder)) == CASES


def test_a_terminal_that_is_closed_ends_the_run_in_good_order(matrix: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mine, theirs = pty.openpty()
    command = ["setsid", "--ctty", "env", "--default-signal=INT,HUP,TERM", sys.executable, "-m", "gradcheck_cli", "run"]
    command += ["--device", "cpu", "--matrix", str(matrix), "--output", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=variables(), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    until, seen = time.monotonic() + 60, 0
    while seen < 3:
        os.read(mine, 1 << 16)
        assert time.monotonic() < until, "no verdict in a minute"
        if (folder / "journal.jsonl").exists():
            seen = (folder / "journal.jsonl").read_text("utf-8").count('"event":"verdict"')
    os.close(mine)
    assert process.wait(60) == 130
    outcomes = report(folder)["tally"]["outcomes"]
    assert set(outcomes) == {"PASSED", "UNTESTED"}
    assert outcomes["PASSED"] == len(judged(folder))


def test_a_folder_that_is_removed_ends_the_run_and_what_was_judged_is_written_anew(
    matrix: Path, tmp_path: Path
) -> None:
    run = going(tmp_path / "run", "--matrix", str(matrix))
    run.until(3)
    before = judged(run.folder)
    shutil.rmtree(run.folder)
    done = run.ended()
    assert done.code == 2
    assert "jsonl: it was removed while the run went on" in done.err
    passed = [one["case"] for one in report(run.folder)["verdicts"] if one["outcome"] == "PASSED"]
    assert set(before) <= set(passed)
    assert report(run.folder)["exit_code"] == 2
    done = typed("run", "--output", str(run.folder), "--resume")
    assert (done.code, f"--last-failed {run.folder}" in done.err) == (2, True)


# Each runs a command in a shell in which the disk of $FOLDER is as good as full, or a file cannot grow any more.
FULL = {
    "a full disk": 'unshare -Urm sh -c \'mount -t tmpfs -o size=300k none "$FOLDER" && "$@"; code=$?; '
    'cp -r "$FOLDER" "$KEPT"; exit $code\' sh "$@"',
    "a file that may not grow": 'ulimit -f 600; "$@"; code=$?; cp -r "$FOLDER" "$KEPT"; exit $code',
}
SAID = {"a full disk": "No space left on device", "a file that may not grow": "File too large"}


def own_disk() -> bool:
    """Whether a disk of one's own may be mounted here."""
    asked = subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True)
    return asked.returncode == 0


@pytest.mark.parametrize("how", FULL)
def test_a_full_disk_is_told_and_costs_nothing_that_was_written(how: str, matrix: Path, tmp_path: Path) -> None:
    if how == "a full disk" and not own_disk():
        pytest.skip("no disk of one's own may be mounted here")
    folder = tmp_path / "disk" / "run"
    folder.parent.mkdir()
    where = {"FOLDER": str(folder.parent), "KEPT": str(tmp_path / "kept")}
    done = going(folder, "--matrix", str(matrix), first=("sh", "-c", FULL[how], "sh"), **where).ended()
    assert done.code == 2
    assert f"jsonl: {SAID[how]}" in done.err
    assert f"`gradcheck run --output {folder} --resume` runs what is left" in done.err
    kept = tmp_path / "kept" / "run"
    assert 0 < len(judged(kept)) < CASES
    assert resumed(kept).code == 0
    assert Counter(judged(kept)) == dict.fromkeys(judged(kept), 1)
    assert len(judged(kept)) == CASES
