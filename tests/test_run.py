"""Does a run do what it says, to its end and when it is cut short? On plain torch, in real workers."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import Done, child, typed, variables
from junitparser import JUnitXml

LOOP = ("run", "--provider", "torch", "--device", "cpu")
# grouped_mm raises in its backward where grad_output is expanded; loop is right.
RAISES, RIGHT, RIGHT_TOO = "torch:api=grouped_mm:grad_output=expanded", "torch:api=loop", "torch:api=loop:bias=1"


class Run(NamedTuple):
    """A finished run: how it ended, and what it left."""

    done: Done
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text("utf-8"))
        return report

    @property
    def outcomes(self) -> dict[str, str]:
        return {verdict["case"]: verdict["outcome"] for verdict in self.report["verdicts"]}


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the four loop cases of smoke, with every format, asked for in part by variables."""
    folder = tmp_path_factory.mktemp("green") / "run"
    formats = [part for name in ("table", "csv", "json", "junit", "markdown") for part in ("--format", name)]
    done = child(
        *LOOP, "-k", "api=loop", *formats, GRADCHECK_MATRIX="smoke", GRADCHECK_OUTPUT=str(folder), NVTE_FRAMEWORK="x"
    )
    return Run(done, folder)


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that stops at its first finding, one case of three before it; no --output, no --provider."""
    where = tmp_path_factory.mktemp("red")
    cases = [part for case in (RIGHT, RAISES, RIGHT_TOO) for part in ("--case", case)]
    done = child("run", "--device", "cpu", "--maxfail", "1", "--quiet", *cases, cwd=where)
    (folder,) = (where / "reports").iterdir()
    return Run(done, folder)


def test_a_run_without_findings_is_green(green: Run) -> None:
    assert (green.done.code, green.done.err) == (0, "")
    assert set(green.outcomes.values()) == {"PASSED"}


def test_a_run_ends_with_its_exit_code_in_words(green: Run) -> None:
    assert "exit code 0: every executed case green and the floor met" in green.done.out
    assert "executed 4 of 4 asked (100%) · 4 PASSED" in green.done.out


def test_a_log_has_no_blanks_at_the_end_of_its_lines(green: Run) -> None:
    assert [line for line in green.done.out.splitlines() if line != line.rstrip()] == []


def test_variables_that_set_options_are_recorded(green: Run) -> None:
    recorded = green.report["run"]
    assert recorded["options"] == {"GRADCHECK_MATRIX": "smoke", "GRADCHECK_OUTPUT": str(green.folder)}
    assert recorded["matrix"] == "smoke"


def test_the_command_line_is_recorded_as_typed(green: Run) -> None:
    assert green.report["run"]["command"][:8] == ["gradcheck", *LOOP, "-k", "api=loop"]


def test_the_worker_says_where_it_ran_and_under_which_variables(green: Run) -> None:
    environment = green.report["environment"]
    assert (environment["device"], "torch" in environment["versions"]) == ("cpu", True)
    assert environment["variables"] == {"NVTE_FRAMEWORK": "x", "OMP_NUM_THREADS": "1"}


def test_the_journal_has_each_case_started_before_it_is_judged(green: Run) -> None:
    lines = [json.loads(line) for line in (green.folder / "journal.jsonl").read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["run", "environment", *["started", "verdict"] * 4, "closed"]


def test_every_format_that_was_asked_for_tells_of_every_case(green: Run) -> None:
    cases = list(green.outcomes)
    rows = csv.DictReader((green.folder / "report.csv").read_text("utf-8").splitlines())
    assert [row["case"] for row in rows] == cases
    assert sum(suite.tests for suite in JUnitXml.fromfile(str(green.folder / "junit.xml"))) == len(cases)
    assert "4 PASSED" in (green.folder / "report.md").read_text("utf-8")
    assert len((green.folder / "observations.jsonl").read_text("utf-8").splitlines()) == len(cases)


VIEWS = {"csv": "report.csv", "json": "report.json", "junit": "junit.xml", "markdown": "report.md"}


@pytest.mark.parametrize(("name", "file"), VIEWS.items(), ids=VIEWS)
def test_report_renders_the_same_file_again_in_another_folder(green: Run, name: str, file: str, tmp_path: Path) -> None:
    done = typed("report", str(green.folder), "--format", name, "--output", str(tmp_path / "new"))
    assert (done.code, done.out) == (0, f"wrote {tmp_path / 'new' / file}\n")
    assert (tmp_path / "new" / file).read_bytes() == (green.folder / file).read_bytes()


def test_report_writes_over_nothing_and_says_where_else_it_could(green: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(green.folder, tmp_path / "run")
    there = folder / "report.json"
    there.write_bytes(there.read_bytes() + b" ")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = typed("report", str(folder), "--format", "svg", "--format", "json")
    assert (done.code, done.out) == (2, "")
    assert f"{there} is there already, and stays as it is: name another folder with --output" in done.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert typed("report", str(folder), "--format", "svg").out == f"wrote {folder / 'table.svg'}\n"


def test_report_prints_the_table_of_the_run_again(green: Run) -> None:
    table = green.done.out[green.done.out.index("provider torch") :]
    again = typed("report", str(green.folder)).out
    assert again[again.index("provider torch") :].splitlines()[:5] == table.splitlines()[:5]


def test_a_finding_makes_the_run_red(red: Run) -> None:
    assert red.done.code == 1
    assert "exit code 1: findings" in red.done.out


def test_maxfail_stops_the_run_and_what_never_ran_is_untested(red: Run) -> None:
    assert red.outcomes == {RIGHT: "PASSED", RAISES: "RAISED", RIGHT_TOO: "UNTESTED"}


def test_without_an_output_the_folder_is_named_after_time_and_provider(red: Run) -> None:
    date, clock, provider = red.folder.name.split("-")
    assert (len(date), len(clock), provider) == (8, 6, "torch")


def test_quiet_leaves_only_the_table_and_the_summary(red: Run) -> None:
    assert red.done.out.startswith("provider torch")


def test_a_finding_comes_with_the_command_that_shows_it_again(red: Run) -> None:
    assert f"run: gradcheck run --case '{RAISES}'" in red.done.out


def test_report_of_a_red_run_is_no_failure_of_the_report(red: Run) -> None:
    done = typed("report", str(red.folder))
    assert (done.code, "RAISED" in done.out) == (0, True)


def test_last_failed_runs_all_that_was_not_green_and_nothing_else(red: Run, tmp_path: Path) -> None:
    again = Run(typed("run", "--last-failed", str(red.folder), "--output", str(tmp_path / "run")), tmp_path / "run")
    assert again.done.code == 1
    assert again.outcomes == {RAISES: "RAISED", RIGHT_TOO: "PASSED"}


def test_last_failed_of_a_green_run_leaves_nothing_to_run(green: Run) -> None:
    done = typed("run", "--last-failed", str(green.folder))
    assert done.code == 5
    assert (
        done.err == f"gradcheck: nothing to run: every case of {green.folder} was green; {done.err.partition('; ')[2]}"
    )


def test_auto_says_which_provider_it_took_and_why(tmp_path: Path) -> None:
    done = typed("run", "--matrix", "smoke", "-k", "api=loop and fuse_wgrad", "--output", str(tmp_path / "run"))
    assert "provider chosen by itself: provider torch, the embedded default; not te:" in done.out


class Cut(NamedTuple):
    """A run that was sent a signal in the middle."""

    code: int
    err: str
    folder: Path

    @property
    def judged(self) -> list[str]:
        lines = (self.folder / "journal.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line)["verdict"]["case"] for line in lines if '"event":"verdict"' in line]


def cut(where: Path, number: signal.Signals) -> Cut:
    """Run the loop cases of core, and send the signal to the whole group once two are judged, as a terminal does."""
    folder = where / "run"
    command = [sys.executable, "-m", "gradcheck_cli", *LOOP, "-k", "api=loop", "--output", str(folder)]
    command = ["env", "--default-signal=INT,HUP,TERM", *command]  # whoever started the tests may have them ignored
    process = subprocess.Popen(
        command, env=variables(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal, until = folder / "journal.jsonl", time.monotonic() + 60
    while not journal.exists() or journal.read_text("utf-8").count('"event":"verdict"') < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no verdict in a minute"
        time.sleep(0.02)
    os.killpg(process.pid, number)
    err = process.communicate(timeout=60)[1]
    return Cut(process.returncode, err, folder)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    return cut(tmp_path_factory.mktemp("interrupted"), signal.SIGINT)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    return cut(tmp_path_factory.mktemp("killed"), signal.SIGKILL)


def test_ctrl_c_ends_the_run_with_130_and_without_a_traceback(interrupted: Cut) -> None:
    assert (interrupted.code, interrupted.err) == (130, "")


def test_after_ctrl_c_everything_judged_is_in_the_report_and_the_rest_is_untested(interrupted: Cut) -> None:
    outcomes = Run(Done(130, "", ""), interrupted.folder).outcomes
    assert [case for case, outcome in outcomes.items() if outcome == "PASSED"] == interrupted.judged
    assert set(outcomes.values()) == {"PASSED", "UNTESTED"}
    assert len(outcomes) == 36


def test_a_run_that_was_killed_is_reported_from_its_journal(killed: Cut) -> None:
    assert not (killed.folder / "report.json").exists()
    done = typed("report", str(killed.folder))
    assert (done.code, done.err) == (0, "")
    assert f"{len(killed.judged)} PASSED" in done.out
    assert f"executed {len(killed.judged)} of 36 asked" in done.out
    assert f"{36 - len(killed.judged)} UNTESTED" in done.out


def test_what_a_killed_run_left_open_can_be_run_again(killed: Cut, tmp_path: Path) -> None:
    done = typed("run", "--last-failed", str(killed.folder), "--output", str(tmp_path / "run"))
    rerun = list(Run(done, tmp_path / "run").outcomes)
    assert done.code == 0
    assert set(rerun).isdisjoint(killed.judged)
    assert len(rerun) == 36 - len(killed.judged)


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGHUP), ids=lambda number: number.name)
def test_a_cancelled_job_ends_as_ctrl_c_does(number: signal.Signals, tmp_path: Path) -> None:
    cancelled = cut(tmp_path, number)
    assert (cancelled.code, cancelled.err) == (130, "")
    assert (cancelled.folder / "report.json").exists()


def test_last_failed_keeps_the_seeds_of_the_cases_that_failed(red: Run, tmp_path: Path) -> None:
    done = typed("run", "--last-failed", str(red.folder), "--seed", "7", "--output", str(tmp_path / "run"))
    assert set(Run(done, tmp_path / "run").outcomes) <= set(red.outcomes)
