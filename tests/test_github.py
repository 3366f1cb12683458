"""Does GitHub show each problem once, whole, and take nothing of a candidate for a command?"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
import report_samples as samples
from commands import child, typed
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli.records.known import Complaint
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters import markdown
from gradcheck_cli.reporters.github import CUT, LARGEST_SUMMARY, fitting, workflow_commands

MISSED = Path(__file__).parent.parent / "reports" / "te-2.17.1-h200" / "issue-3234-cublas-13.5"
COMMAND = re.compile(r"::(?P<level>error|warning) title=(?P<title>[^:,]*)::(?P<message>.*)")


def decoded(line: str) -> tuple[str, str, str]:
    """A command as the runner reads it; its escapes are those of the toolkit's `command.ts`."""
    found = COMMAND.fullmatch(line)
    assert found, line
    title = found["title"].replace("%3A", ":").replace("%2C", ",")
    return found["level"], plain(title), plain(found["message"])


def plain(text: str) -> str:
    return text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")


def commands_in(out: str) -> list[str]:
    """The lines that the runner obeys: not those between a stop and its word."""
    obeyed, word = [], ""
    for line in map(str.lstrip, out.splitlines()):
        if word:
            word = "" if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            obeyed.append(line)
    assert word == ""
    return obeyed


def saying(why: str) -> Report:
    """A run whose only problem says this."""
    finding = samples.finding(Outcome.RAISED, why)
    return samples.report([samples.verdict("te:api=op", Outcome.RAISED, findings=[finding])], exit_code=1)


def distinct(count: int) -> Report:
    """A run with so many problems of different causes."""
    whys = [f"expected a backward; found {'x' * (number + 1)}Error" for number in range(count)]
    verdicts = [
        samples.verdict(f"te:api=op:seed={n}", Outcome.RAISED, findings=[samples.finding(Outcome.RAISED, why)])
        for n, why in enumerate(whys)
    ]
    return samples.report(verdicts, exit_code=1)


# Annotations


def test_a_problem_is_one_line_whatever_number_of_cases_has_it() -> None:
    ((level, title, message),) = map(decoded, workflow_commands(samples.seed()))
    assert (level, title) == ("error", "gradcheck: MISSING wgrad · 4 cases of te · untouched")
    why, run = message.split("\n")
    assert why == samples.WHY[Outcome.MISSING]
    assert run.startswith("run: gradcheck run --case 'te:api=module:single_grouped_weight=1:")


def test_what_is_green_is_no_problem() -> None:
    green = [samples.verdict("te:api=op"), samples.verdict("te:api=op:bias=1", Outcome.REFUSED)]
    assert workflow_commands(samples.report(green)) == []


def test_a_known_failure_is_no_problem_and_an_entry_that_is_not_true_is() -> None:
    known = samples.verdict("te:api=module", Outcome.MISSING, known="https://example.org/7")
    complaint = Complaint(place="cases/known.toml, line 9", kind="expired", why="expected a later day: set one")
    report = msgspec.structs.replace(samples.report([known], exit_code=4), complaints=[complaint])
    assert [decoded(line) for line in workflow_commands(report)] == [
        ("error", "gradcheck: known failure expired", "cases/known.toml, line 9: expected a later day: set one")
    ]


NO_FINDINGS = {5: "floor not met", 3: "no success", 130: "no success"}


@pytest.mark.parametrize(("code", "title"), NO_FINDINGS.items(), ids=str)
def test_a_run_without_findings_that_is_no_success_says_why(code: int, title: str) -> None:
    report = samples.report([samples.verdict("te:api=op", Outcome.REFUSED)], exit_code=code)
    ((level, told, message),) = map(decoded, workflow_commands(report))
    assert (level, told, message != "") == ("error", f"gradcheck: {title}", True)


@pytest.mark.parametrize(("count", "more"), ((9, 0), (10, 0), (11, 1), (25, 15)))
def test_of_more_problems_than_github_shows_it_says_how_many(count: int, more: int) -> None:
    told = [decoded(line) for line in workflow_commands(distinct(count))]
    assert sum(level == "error" for level, _, _ in told) == min(count, 10)
    warnings = [message.partition(":")[0] for level, _, message in told if level == "warning"]
    expected = f"{more} more problem{'' if more == 1 else 's'} of this run"
    assert warnings == ([expected] if more else [])


EVIL = {
    "another command": "::error title=owned::gotcha",
    "a command on a line of its own": "first\n::add-mask::e\r\n##[command]rm\u2028::set-output name=a::b",
    "what looks escaped": "100%25 of %0A::warning::x",
    "properties": "a,file=/etc/passwd,line=1:col=2",
    "a terminal": "\x1b[31mred\x1b[0m \x00\x07 \x1b]0;title\x07",
}


@pytest.mark.parametrize("why", EVIL.values(), ids=EVIL)
def test_nothing_that_a_candidate_says_is_a_command(why: str) -> None:
    (line,) = workflow_commands(saying(why))
    level, _, message = decoded(line)
    assert (level, line.isprintable()) == ("error", True)
    assert message.split("\n")[0].split() == re.sub(r"\x1b\[\d+m|\x1b\]0;title\x07|[\x00\x07]", "", why).split()


@given(st.text(max_size=600), st.text(max_size=60))
def test_any_text_makes_one_line_that_reads_back(why: str, diagnosis: str) -> None:
    finding = msgspec.structs.replace(samples.finding(Outcome.RAISED, why), diagnosis=diagnosis)
    verdict = samples.verdict("te:api=op", Outcome.RAISED, findings=[finding])
    (line,) = workflow_commands(samples.report([verdict], exit_code=1))
    assert "\n" not in line
    assert decoded(line)[2].endswith("run: gradcheck run --case 'te:api=op'")


# The summary


def test_a_summary_that_fits_is_left_as_it_is() -> None:
    text = markdown.text(samples.many())
    assert fitting(text, len(text.encode())) == text


@given(st.integers(0, 70_000))
def test_a_summary_is_cut_at_the_end_of_a_row_and_says_so(room: int) -> None:
    text = MANY
    cut = fitting(text, room)
    assert len(cut.encode()) <= max(room, 0)
    if cut not in ("", text):
        head, _, rest = cut.partition(CUT)
        assert rest.strip() == ("</details>" if "<details>" in head else "")
        assert text.startswith(head.removesuffix("\n"))
        assert head.endswith("\n\n")


MANY = markdown.text(samples.many())


@pytest.mark.parametrize("command", ("report", "judge"))
def test_report_and_judge_annotate_and_add_to_the_summary(tmp_path: Path, command: str) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n", "utf-8")
    done = child(command, str(MISSED), "--format", "github", GITHUB_STEP_SUMMARY=str(summary))
    assert (done.code, done.err) == (0 if command == "report" else 1, "")
    titles = {decoded(line)[1] for line in commands_in(done.out)}
    assert titles == {f"gradcheck: MISSING wgrad · 2 cases of te · {how}" for how in ("none", "untouched")}
    before, heading, _ = summary.read_text("utf-8").partition("# gradcheck 0.1.0: issue-3234 matrix of te\n")
    assert (before, heading != "") == ("# before\n", True)


def test_a_run_annotates_after_its_table_and_adds_to_the_summary(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    case = ("--case", "faults:api=wgrad_doubled", "--case", "torch:api=loop", "--device", "cpu", "--mutants", "none")
    output = ("--output", str(tmp_path / "run"), "--format", "github")
    done = child("run", *case, *output, GITHUB_STEP_SUMMARY=str(summary))
    assert (done.code, done.err) == (1, "")
    assert [decoded(line)[1] for line in commands_in(done.out)] == [
        "gradcheck: INEXACT wgrad · 1 case of faults · doubled",
        "gradcheck: INACCURATE wgrad · 1 case of faults, which counts as INEXACT · doubled",
    ]
    assert done.out.index("exit code 1: findings") < done.out.index("::error")
    assert "**INEXACT wgrad · 1 case of faults · doubled**" in summary.read_text("utf-8")
    assert not any(path.name == "report.md" for path in (tmp_path / "run").iterdir())


def test_the_table_cannot_give_a_command_either(tmp_path: Path) -> None:
    folder = shutil.copytree(MISSED, tmp_path / "run")
    report = json.loads((folder / "report.json").read_text("utf-8"))
    report["run"]["options"] = {"::warning::a variable": "x"}
    (folder / "report.json").write_text(json.dumps(report), "utf-8")
    done = child("report", str(folder), "--format", "table", "--format", "github")
    assert "\n::warning::a variable=x\n" in done.out
    assert {decoded(line)[0] for line in commands_in(done.out)} == {"error"}


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    done = child("report", str(MISSED), "--format", "github", GITHUB_STEP_SUMMARY="", cwd=tmp_path)
    assert (done.code, list(tmp_path.iterdir())) == (0, [])


def test_a_summary_that_is_full_stays_as_large_as_github_takes(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (LARGEST_SUMMARY - 2_000), "utf-8")
    assert child("report", str(MISSED), "--format", "github", GITHUB_STEP_SUMMARY=str(summary)).code == 0
    assert LARGEST_SUMMARY - 2_000 < summary.stat().st_size <= LARGEST_SUMMARY
    assert CUT in summary.read_text("utf-8")


def test_a_summary_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = child("report", str(MISSED), "--format", "github", GITHUB_STEP_SUMMARY=str(tmp_path))
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "the file that GITHUB_STEP_SUMMARY names" in done.err


def test_github_is_one_of_the_formats() -> None:
    assert "github" in typed("providers").out
