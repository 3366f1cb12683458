"""Is what a reporter writes true, whole, and readable by those who read it?"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import junitparser
import msgspec
import pytest
import report_samples as samples
from markdown_it import MarkdownIt
from rich.console import Console
from rich.padding import Padding

from gradcheck_cli.errors import GradcheckError, UsageError
from gradcheck_cli.judge.conclude import untested
from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.observation import INFINITE, ROLES
from gradcheck_cli.records.report import Opened, Report, Started, tally
from gradcheck_cli.records.roles import OF_A_CHAIN
from gradcheck_cli.records.verdict import Margin, Mutants, Outcome, Verdict
from gradcheck_cli.reporters import csv_pandas, formats, junit, markdown, picture, report_json
from gradcheck_cli.reporters.console import ConsoleReporter
from gradcheck_cli.reporters.everyone import Everyone
from gradcheck_cli.reporters.files import FileReporter, write_whole
from gradcheck_cli.reporters.folding import rows
from gradcheck_cli.reporters.grouping import groups, notes
from gradcheck_cli.reporters.jsonl import Journal, Lines, Observations
from gradcheck_cli.reporters.plain_text import excerpt, printable
from gradcheck_cli.reporters.progress import BarReporter, PlainReporter
from gradcheck_cli.reporters.protocol import Reporter, Silent
from gradcheck_cli.reporters.read import journal, read
from gradcheck_cli.reporters.standard_output import PatientOutput
from gradcheck_cli.reporters.summary import environment_line, floor, headline, percent, proof, reproducer, title

REPORTS: dict[str, Callable[[], Report]] = {
    "the seed": samples.seed,
    "every outcome": samples.every_outcome,
    "1500 cases": samples.many,
    "one case": lambda: samples.report([samples.verdict("torch:api=loop")]),
    "no case": lambda: samples.report([], exit_code=5),
}
every_report = pytest.mark.parametrize("made", REPORTS.values(), ids=REPORTS)

LAYER = [role for role in ROLES if role not in OF_A_CHAIN]


def shown(report: Report, *, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    ConsoleReporter(console, Path("reports/x")).closed(report)
    return _written(console)


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def tell(reporter: Reporter, report: Report) -> None:
    """A whole run, as the pipeline tells it."""
    asked = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.EXCLUDED]
    reporter.opened(report.run, [verdict.case for verdict in asked])
    reporter.environment(report.environment)
    for verdict in report.verdicts:
        if verdict in asked:
            reporter.started(Case.parse(verdict.case))
            reporter.observed(samples.OBSERVATION)
        reporter.finished(verdict)
    reporter.closed(report)
    reporter.stop()


# The console


def test_the_seeds_matrix_reads_as_the_seeds_own_table() -> None:
    table = [line.split() for line in shown(samples.seed()).splitlines() if line.startswith(("module", "op"))]
    said = {(api, single, dtype): wgrad for api, _, single, _, dtype, _, _, _, wgrad, *_ in table}
    assert said == {
        ("module", "0", "bf16"): "ok",
        ("module", "1", "bf16"): "MISSING",
        ("module", "0", "fp32"): "ok",
        ("module", "1", "fp32"): "MISSING",
        ("op", "1", "bf16"): "ok",
        ("op", "1", "fp32"): "ok",
    }


@every_report
def test_nothing_but_a_command_to_copy_is_wider_than_the_terminal(made: Callable[[], Report]) -> None:
    too_wide = [line for line in shown(made()).splitlines() if len(line) > 100 and not line.startswith("  run: ")]
    assert too_wide == []


@pytest.mark.parametrize("width", (48, 60, 80, 100))
def test_an_outcome_is_written_out_at_every_width(width: int) -> None:
    cases = [Case(provider="te", api="module", path="native", bias=True, seed=i) for i in range(12)]
    for outcome in set(Outcome) - {Outcome.PASSED, Outcome.EXCLUDED}:
        bad = [samples.verdict(case, outcome, roles=dict.fromkeys(LAYER, outcome), findings=[]) for case in cases]
        table = shown(samples.report(bad), width=width).partition("n/m")[0]
        assert table.count(outcome.value) == 4
        assert table.count("12/12") == 4


def test_the_ratio_gives_way_before_a_line_is_broken_and_so_does_its_legend() -> None:
    missing = samples.report(
        samples.verdict(Case(provider="te", api="module", bias=True, seed=i), roles=dict.fromkeys(LAYER, outcome))
        for i, outcome in enumerate((Outcome.PASSED, Outcome.MISSING, Outcome.MISSING))
    )
    assert "MISSING 2/3 MISSING 2/3 MISSING 2/3 MISSING 2/3" in shown(missing, width=89)
    roomy, narrow = (shown(missing, width=width).partition("n/m: ") for width in (110, 89))
    assert ("err/" in roomy[0], "err/" in narrow[0]) == (True, False)
    assert ("the largest error as a share" in roomy[2], "the largest error as a share" in narrow[2]) == (True, False)


def test_the_legend_says_that_the_ratio_had_no_room_where_there_is_one() -> None:
    told = "err/bound: no room for it here; a wider terminal shows it, report.csv has it"
    seed = samples.seed()
    unmeasured = samples.report([msgspec.structs.replace(verdict, margins={}) for verdict in seed.verdicts])
    assert [told in " ".join(shown(made, width=48).split()) for made in (seed, unmeasured)] == [True, False]
    assert told not in " ".join(shown(seed, width=100).split())


def test_the_legend_explains_nothing_that_no_table_shows() -> None:
    text = shown(samples.seed())
    assert ("n/m" in text, "err/bound: " in text) == (False, True)


def test_no_outcome_is_told_by_colour_alone() -> None:
    text = shown(samples.every_outcome())
    assert [outcome for outcome in Outcome if outcome.value not in text] == []


def test_a_row_says_how_many_of_how_many_cases_are_missing() -> None:
    cases = [Case(provider="te", api="module", seed=i) for i in range(3)]
    outcomes = (Outcome.MISSING, Outcome.PASSED, Outcome.MISSING)
    text = shown(samples.report(map(samples.verdict, cases, outcomes)))
    assert "MISSING 2/3" in text


def test_what_was_executed_of_what_was_asked_comes_before_what_passed() -> None:
    cases = [Case(provider="te", api="op", seed=i) for i in range(108)]
    report = samples.report(
        samples.verdict(case, Outcome.PASSED if case.seed < 48 else Outcome.REFUSED) for case in cases
    )
    assert headline(report.tally) == "executed 48 of 108 asked (44%) · 48 PASSED · 60 REFUSED"


def test_the_headline_keeps_what_was_not_asked_apart_so_that_its_counts_add_up() -> None:
    verdicts = [samples.verdict("te:api=op", outcome) for outcome in (Outcome.PASSED, Outcome.EXCLUDED)]
    told = headline(samples.report(verdicts).tally)
    assert told == "executed 1 of 1 asked (100%) · 1 PASSED · not asked: 1 EXCLUDED"
    assert headline(samples.report(verdicts[1:]).tally) == "executed 0 of 0 asked (0%) · not asked: 1 EXCLUDED"


def test_a_floor_that_is_missed_says_what_was_demanded_found_and_to_do() -> None:
    report = samples.report([samples.verdict("te:api=op"), *[samples.verdict("te:api=op", Outcome.REFUSED)] * 2])
    assert floor(report) == (
        "floor NOT MET: 33% executed, expected at least 50%; open what was REFUSED, or ask for less with --min-executed"
    )


NEVER_RUN = untested(Case.parse("te:api=op"))
PASSED, REFUSED = (samples.verdict("te:api=op", outcome) for outcome in (Outcome.PASSED, Outcome.REFUSED))
LEFT = "could be judged: go on with --resume and its folder"
# Verdicts -> what is to be done for the floor to be met.
FLOORS: dict[str, tuple[list[Verdict], str]] = {
    "the run was cut short": ([PASSED, *[NEVER_RUN] * 4], f"the run ended before 4 cases {LEFT}"),
    "cut short before the first": ([NEVER_RUN], f"the run ended before 1 case {LEFT}"),
    "cut short among refusals": ([REFUSED, NEVER_RUN], f"the run ended before 1 case {LEFT}; open what was REFUSED"),
    "all refused": ([REFUSED], "select cases that this machine can run, or open what was REFUSED"),
    "nothing there": ([], "select cases that this machine can run"),
    "something else ran": (
        [PASSED, *[samples.verdict("te:api=op", Outcome.NOT_THE_CASE)] * 2],
        "ask for less with --min-executed",
    ),
}


@pytest.mark.parametrize(("verdicts", "told"), FLOORS.values(), ids=FLOORS)
def test_a_missed_floor_says_what_is_true_of_this_run_and_no_more(verdicts: list[Verdict], told: str) -> None:
    assert floor(samples.report(verdicts)).partition("; ")[2] == told


def test_a_share_just_under_the_floor_is_not_rounded_up_to_it() -> None:
    assert percent(0.4999) == "49%"


def test_an_empty_run_never_meets_its_floor() -> None:
    assert "floor NOT MET: nothing was executed" in shown(samples.report([], min_executed=0.0))


def test_findings_of_one_cause_stand_once_with_their_number_and_a_command() -> None:
    found = groups(samples.seed().verdicts)
    assert [group.title for group in found] == ["MISSING wgrad · 4 cases of te · untouched"]


def test_a_group_says_how_many_of_its_cases_the_tally_counts_elsewhere() -> None:
    findings = [samples.finding(Outcome.REFUSED), samples.finding(Outcome.MISSING)]
    report = samples.report(
        [
            samples.verdict("te:api=op", Outcome.REFUSED),
            samples.verdict("te:api=op:seed=1", Outcome.MISSING, findings=findings),
        ]
    )
    assert [group.title for group in groups(report.verdicts)] == [
        "MISSING wgrad · 1 case of te · untouched",
        "REFUSED · 2 cases of te, 1 of which counts as MISSING",
    ]
    assert report.tally.outcomes == {"REFUSED": 1, "MISSING": 1}


def test_whys_that_differ_only_in_numbers_are_one_cause() -> None:
    whys = ("expected 12 at [5, 11]; found 24", "expected -3.5e-2 at [0, 1]; found 7")
    found = groups(
        [samples.verdict("te:api=op", Outcome.RAISED, findings=[samples.finding(Outcome.RAISED, why)]) for why in whys]
    )
    assert len(found) == 1


def test_the_gravest_findings_come_first_and_refusals_last() -> None:
    found = [group.finding.outcome for group in groups(samples.every_outcome().verdicts)]
    assert found == sorted(Outcome, key=lambda outcome: -outcome.gravity)[:-1]


def test_a_refusal_says_what_would_open_it() -> None:
    text = shown(samples.report([samples.verdict("te:api=op", Outcome.REFUSED)]))
    assert "opens with: cuBLAS 13.4 or newer" in text


def test_a_reproducer_is_one_command_that_a_line_break_does_not_cut() -> None:
    text = shown(samples.many())
    long = next(group.example for group in groups(samples.many().verdicts) if len(group.example) > 80)
    assert f"  run: gradcheck run --case '{long}'\n" in text


def test_a_reproducer_survives_a_shell() -> None:
    said = subprocess.run(
        ["/bin/sh", "-c", reproducer("te:api=op:m_splits=1,0,$(x)'y").replace("gradcheck run --case", "printf %s")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "te:api=op:m_splits=1,0,$(x)'y"


def test_bgrad_and_path_have_no_column_where_no_case_has_them() -> None:
    text = shown(samples.report([samples.verdict("torch:api=loop")]))
    assert "bgrad" not in text
    assert "path" not in text


def test_bgrad_has_a_column_where_one_came_without_a_bias() -> None:
    roles = {"fprop": Outcome.PASSED, "bgrad": Outcome.UNEXPECTED}
    [row] = rows([samples.verdict("te:api=op", Outcome.UNEXPECTED, roles=roles)])["te"]
    assert str(row.roles["bgrad"]) == "UNEXPECTED"


# The path that was asked for, and the one that was seen -> what is shown.
PATHS = {
    "left to the candidate": ("auto", "legacy", "legacy"),
    "as it was asked for": ("native", "native", "native"),
    "another than was asked for": ("native", "legacy", "legacy (native)"),
    "never seen": ("native", "", "(native)"),
    "left to the candidate and never seen": ("auto", "", "(auto)"),
}


@pytest.mark.parametrize(("asked", "ran", "told"), PATHS.values(), ids=PATHS)
def test_a_path_is_shown_as_it_ran_and_in_brackets_as_it_was_asked_for(asked: str, ran: str, told: str) -> None:
    [row] = rows([samples.verdict(f"te:api=module:path={asked}", effective={"path": ran} if ran else {})])["te"]
    assert row.path == told


@pytest.mark.parametrize("view", (shown, markdown.text))
def test_brackets_around_a_path_are_explained_where_there_are_some(view: Callable[[Report], str]) -> None:
    fell_back = samples.verdict("te:api=module:path=native", Outcome.REFUSED, effective={"path": "legacy"})
    told = "path: as it ran, in brackets one that was asked for and not seen to run"
    texts = [" ".join(view(samples.report([one])).split()) for one in (fell_back, samples.verdict("te:api=module"))]
    assert [told in text for text in texts] == [True, False]


def test_what_was_measured_of_something_else_than_was_asked_is_no_figure_of_the_row(tmp_path: Path) -> None:
    margins = {"fprop": Margin(slot="fprop[1]", ratio=0.97, after_rounding=0.31)}
    refused = samples.verdict("te:api=module:path=native", Outcome.REFUSED, margins=margins)
    [row] = rows([refused])["te"]
    assert (row.largest, csv_of(samples.report([refused]), tmp_path)[0]["worst_ratio"]) == (None, "")


def test_markup_and_emoji_codes_in_a_message_are_printed_as_they_are() -> None:
    finding = samples.finding(Outcome.RAISED, "expected [bold]x[/bold]; found :smile: and [/red]")
    text = shown(samples.report([samples.verdict("te:api=op", Outcome.RAISED, findings=[finding])]))
    assert "expected [bold]x[/bold]; found :smile: and [/red]" in text


def test_a_slot_that_nobody_judged_is_untested_in_the_table() -> None:
    [row] = rows([samples.verdict("te:api=op", roles={"fprop": Outcome.PASSED})])["te"]
    assert {role: str(cell) for role, cell in row.roles.items()} == {
        "fprop": "ok",
        "dgrad": "UNTESTED",
        "wgrad": "UNTESTED",
    }


def test_channels_that_were_not_judged_are_named() -> None:
    verdict = samples.verdict("te:api=op", channels={"exact": "a sum of 300 is not exact in bf16"})
    assert notes(samples.report([verdict])) == {"exact data: a sum of 300 is not exact in bf16": 1}


def test_random_data_is_called_that_where_the_records_say_normal() -> None:
    verdict = samples.verdict("te:api=op", channels={"normal": "the largest number of fp16 is too near"})
    assert list(notes(samples.report([verdict]))) == ["random data: the largest number of fp16 is too near"]


NO_FAULTS = "no faults were put into what passed: nothing proves that they would have been seen"


@pytest.mark.parametrize("view", (shown, markdown.text))
def test_a_run_without_a_pass_does_not_speak_of_what_passed(view: Callable[[Report], str]) -> None:
    reports = [samples.report([samples.verdict("te:api=op", outcome)]) for outcome in (Outcome.PASSED, Outcome.MISSING)]
    assert [NO_FAULTS in view(report) for report in reports] == [True, False]


def test_the_environment_names_device_and_versions() -> None:
    assert environment_line(samples.H200) == (
        "NVIDIA H200 (sm_90) · torch 2.13.0+cu130 · transformer_engine 2.17.1 · cuda 13.1 · cublaslt 13.1.0 · "
        "cudnn 9.20.0 · driver 580.95.05 · python 3.12.3"
    )


def test_the_two_figures_of_a_row_are_the_largest_each_on_its_own() -> None:
    margins = {
        "fprop": Margin(slot="fprop[0]", ratio=0.99, after_rounding=0.01),
        "wgrad": Margin(slot="wgrad[1]", ratio=0.24, after_rounding=0.22),
    }
    assert "0.99 (0.22)" in shown(samples.report([samples.verdict("te:api=op", margins=margins)]))


def test_an_error_where_the_bound_is_zero_is_infinite_in_the_table() -> None:
    margins = {"wgrad": Margin(slot="wgrad[1]", ratio=INFINITE, after_rounding=150.0)}
    assert "inf (2e+02)" in shown(samples.report([samples.verdict("te:api=op", margins=margins)]))


@pytest.mark.parametrize("view", (shown, markdown.text))
def test_a_provider_that_was_not_named_says_why_it_was_chosen(view: Callable[[Report], str]) -> None:
    text = view(samples.report([samples.verdict("torch:api=loop")], chosen_because="no CUDA driver answers"))
    assert "provider chosen by itself: no CUDA driver answers" in text


def test_a_title_without_a_matrix_speaks_of_named_cases() -> None:
    assert title(samples.report([], matrix="").run) == "gradcheck 0.1.0: named cases of te"


# Progress


def test_plain_lines_name_each_case_that_is_not_green_and_no_other() -> None:
    console = Console(width=100, file=io.StringIO())
    tell(PlainReporter(console, clock=lambda: 0.0), samples.seed())
    lines = _written(console).splitlines()
    assert lines[0] == "gradcheck 0.1.0: issue-3234 matrix of te, 12 cases"
    assert [line.split()[0] for line in lines[2:]] == ["MISSING"] * 4


def test_plain_progress_comes_now_and_then_with_counts_and_time_left() -> None:
    console, now = Console(width=100, file=io.StringIO()), [0.0]
    plain = PlainReporter(console, clock=lambda: now[0])
    plain.opened(samples.RUN, ["te:api=op"] * 12)
    for verdict in samples.seed().verdicts:
        now[0] += 3.0
        plain.finished(verdict)
    said = [line for line in _written(console).splitlines() if " left" in line]
    assert said[0] == "4 of 12 cases · 2 PASSED · 2 MISSING · about 24 s left"
    assert len(said) == 3


def test_the_bar_shows_the_case_at_work_and_the_counts() -> None:
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    bar = BarReporter(console)
    bar.opened(samples.RUN, ["te:api=op", "te:api=module"])
    bar.started(Case.parse("te:api=module"))
    bar.finished(samples.verdict("te:api=op", Outcome.MISSING))
    bar.stop()
    text = _written(console)
    assert "1/2" in text
    assert "1 MISSING" in text
    assert "te:api=module" in text


def test_an_excluded_case_does_not_move_the_bar() -> None:
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    bar = BarReporter(console)
    bar.opened(samples.RUN, ["te:api=op"])
    bar.finished(samples.verdict("te:api=op", Outcome.EXCLUDED))
    bar.stop()
    assert "1/1" not in _written(console)


# The journal


def test_the_journal_alone_gives_the_whole_report_back(tmp_path: Path) -> None:
    report = samples.every_outcome()
    tell(Journal(tmp_path), report)
    assert read(tmp_path) == report


def test_the_journal_opens_with_the_run_and_says_started_before_each_verdict(tmp_path: Path) -> None:
    tell(Journal(tmp_path), samples.report([samples.verdict("te:api=op")]))
    kinds = [type(line).__name__ for line in journal(tmp_path / "journal.jsonl")]
    assert kinds == ["Opened", "Seen", "Started", "Finished", "Closed"]


def test_an_excluded_case_is_never_started(tmp_path: Path) -> None:
    tell(Journal(tmp_path), samples.report([samples.verdict("te:api=op", Outcome.EXCLUDED)]))
    assert not [line for line in journal(tmp_path / "journal.jsonl") if isinstance(line, Started)]


def test_every_journal_line_carries_its_schema_and_every_axis(tmp_path: Path) -> None:
    tell(Journal(tmp_path), samples.seed())
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert {line["schema"] for line in lines} == {1}
    assert {tuple(line["axes"]) for line in lines if line["event"] == "started"} == {AXES}


def test_a_line_is_on_disk_before_the_next_case_starts(tmp_path: Path) -> None:
    written = Journal(tmp_path)
    written.opened(samples.RUN, ["te:api=op"])
    assert [type(line) for line in journal(tmp_path / "journal.jsonl")] == [Opened]
    written.stop()


def test_the_journal_is_synced_each_second_also_where_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr("os.fsync", lambda _: synced.set())
    lines = Lines(tmp_path / "x.jsonl")
    lines.write(samples.RUN)
    assert synced.wait(30)
    lines.close()


@pytest.mark.parametrize("cut", (1, 20, 200))
def test_a_run_that_was_killed_in_the_middle_of_a_line_is_read(tmp_path: Path, cut: int) -> None:
    tell(Journal(tmp_path), samples.seed())
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)[:-1]
    path.write_bytes(b"".join(whole)[:-cut])
    report = read(tmp_path)
    assert report.exit_code == 130
    assert len(report.verdicts) == 12


def cut_off(folder: Path, *asked: str) -> Report:
    """A run that was killed during its second case, as its journal tells of it."""
    unfinished = Journal(folder)
    unfinished.opened(samples.RUN, asked)
    unfinished.started(Case.parse(asked[0]))
    unfinished.finished(samples.verdict(asked[0]))
    unfinished.started(Case.parse(asked[1]))
    unfinished.stop()
    return read(folder)


def test_a_killed_run_is_measured_against_everything_that_was_asked(tmp_path: Path) -> None:
    report = cut_off(tmp_path, *[f"te:api=op:seed={i + 1}" for i in range(10)])
    assert headline(report.tally) == "executed 1 of 10 asked (10%) · 1 PASSED · 9 UNTESTED"


def test_a_killed_run_tells_the_case_it_was_cut_off_in_from_those_it_never_came_to(tmp_path: Path) -> None:
    report = cut_off(tmp_path, "te:api=op", "te:api=op:seed=1", "te:api=op:dtype=fp32", "te:api=op:axis_to_come=1")
    _, cut, never, unknown = report.verdicts
    assert "the run was cut off here" in cut.findings[0].why
    assert never.findings[0].why == unknown.findings[0].why == "expected the case to run; the run ended before it"
    assert never.axes["dtype"] == "fp32"
    assert unknown.axes == {"provider": "te", "api": "op", "axis_to_come": "1"}


def test_a_case_that_was_started_and_never_judged_is_untested(tmp_path: Path) -> None:
    unfinished = Journal(tmp_path)
    unfinished.opened(samples.RUN, ["te:api=op"])
    unfinished.started(Case.parse("te:api=op"))
    unfinished.stop()
    [verdict] = read(tmp_path).verdicts
    assert verdict.outcome is Outcome.UNTESTED
    assert verdict.axes == Case.parse("te:api=op").axes()


def test_a_run_is_never_written_over_another(tmp_path: Path) -> None:
    Journal(tmp_path).stop()
    with pytest.raises(UsageError, match="is there already: expected a folder without a run; name another"):
        Journal(tmp_path)


def test_one_observation_a_line_comes_back_as_it_was(tmp_path: Path) -> None:
    tell(Observations(tmp_path), samples.report([samples.verdict("te:api=module")]))
    [line] = (tmp_path / "observations.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=type(samples.OBSERVATION)) == samples.OBSERVATION


UNREADABLE = {
    "an empty folder": ({}, "no run in .*: expected report.json or journal.jsonl there"),
    "a journal of nothing": ({"journal.jsonl": ""}, "expected its first line to say what was asked"),
    "half a report": ({"report.json": '{"schema":1,"run":'}, "cannot read .*report.json: .*truncated"),
    "a later schema": (
        {"report.json": '{"schema":99}'},
        "expected schema 1, found 99; .*: a later one wrote it: update",
    ),
    "an older schema of another kind": ({"report.json": '{"schema":0}'}, "Object missing required field `run`"),
    "a broken line": ({"journal.jsonl": 'x\n{"schema":1}\n'}, "cannot read .*journal.jsonl, line 2: "),
    "an unknown event": ({"journal.jsonl": '{"schema":1,"event":"x"}\n'}, "line 1: Invalid value 'x'"),
}


@pytest.mark.parametrize(("files", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_folder_without_a_readable_run_is_one_clear_message(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        read(tmp_path)


def test_zero_bytes_of_a_power_cut_are_passed_over(tmp_path: Path) -> None:
    tell(Journal(tmp_path), samples.seed())
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(bytes(512))
    assert read(tmp_path) == samples.seed()


def test_report_json_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report_json.text(samples.every_outcome()))
    assert read(tmp_path) == samples.every_outcome()


# CSV


def csv_of(report: Report, tmp_path: Path) -> list[dict[str, str]]:
    import csv

    (tmp_path / "report.csv").write_text(csv_pandas.text(report))
    with (tmp_path / "report.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_one_row_a_case_and_a_column_for_every_axis(tmp_path: Path) -> None:
    table = csv_of(samples.many(), tmp_path)
    columns = ["outcome", "fprop", "dgrad", "wgrad", "bgrad", "worst_slot", "worst_ratio", "diagnosis"]
    columns += ["mutants_killed", "mutants_of", "seconds", "retried", "reproduced", "known"]
    assert len(table) == 1500
    assert list(table[0]) == ["case", *AXES, *columns]


def test_csv_axes_read_back_into_the_case(tmp_path: Path) -> None:
    for row in csv_of(samples.many(30), tmp_path):
        assert str(Case.of({axis: row[axis] for axis in AXES})) == row["case"]


def test_csv_names_the_slot_at_fault_and_leaves_empty_what_nobody_measured(tmp_path: Path) -> None:
    [row] = csv_of(samples.report([samples.verdict("te:api=op", Outcome.MISSING)]), tmp_path)
    found = {name: row[name] for name in ("wgrad", "bgrad", "worst_slot", "worst_ratio", "diagnosis")}
    assert found == {
        "wgrad": "MISSING",
        "bgrad": "",
        "worst_slot": "wgrad[3]",
        "worst_ratio": "",
        "diagnosis": "untouched",
    }


def test_csv_of_a_case_that_passed_names_the_slot_nearest_to_its_bound(tmp_path: Path) -> None:
    margins = {
        "fprop": Margin(slot="fprop[0]", ratio=0.2, after_rounding=0.1),
        "wgrad": Margin(slot="wgrad[1]", ratio=0.6, after_rounding=0.1),
    }
    [row] = csv_of(samples.report([samples.verdict("te:api=op", margins=margins)]), tmp_path)
    assert (row["worst_slot"], row["worst_ratio"]) == ("wgrad[1]", "0.6")


def test_csv_of_no_case_is_its_header(tmp_path: Path) -> None:
    assert csv_of(samples.report([]), tmp_path) == []
    assert csv_pandas.text(samples.report([])).startswith("case,provider,api,")


# JUnit


def suite_of(report: Report) -> junitparser.TestSuite:
    [suite] = junitparser.JUnitXml.fromstring(junit.text(report).encode())
    return suite


@every_report
def test_a_junit_reader_counts_what_the_report_counts(made: Callable[[], Report]) -> None:
    report = made()
    suite, outcomes = suite_of(report), report.tally.outcomes
    seen = {kind: sum(isinstance(case.result[0], kind) for case in suite if case.result) for kind in KINDS}
    assert len(list(suite)) == suite.tests == len(report.verdicts)
    for kind, names in KINDS.items():
        assert seen[kind] == sum(outcomes.get(name, 0) for name in names), kind
    assert [suite.skipped, suite.errors, suite.failures] == list(seen.values())


_SKIPS = ("EXCLUDED", "REFUSED")
_ERRORS = ("RAISED", "TIMED_OUT", "CRASHED")
KINDS = {
    junitparser.Skipped: _SKIPS,
    junitparser.Error: _ERRORS,
    junitparser.Failure: tuple(o.value for o in Outcome if o.value not in ("PASSED", *_SKIPS, *_ERRORS)),
}


def case_in_junit(verdict: Verdict) -> junitparser.TestCase:
    [testcase] = suite_of(samples.report([verdict]))
    return testcase


def test_a_junit_testcase_is_named_by_its_case_and_timed() -> None:
    testcase = case_in_junit(samples.verdict("te:api=module:path=native"))
    assert (testcase.classname, testcase.name, testcase.time) == (
        "te.module.native",
        "te:api=module:path=native",
        0.125,
    )


def test_a_junit_failure_says_why_and_how_to_run_it() -> None:
    [result] = case_in_junit(samples.verdict("te:api=op", Outcome.MISSING)).result
    assert (result.type, result.message) == ("MISSING", samples.WHY[Outcome.MISSING])
    assert result.text.endswith("run: gradcheck run --case 'te:api=op'")


def test_junit_survives_control_characters_and_colours_of_a_workers_last_output() -> None:
    [result] = case_in_junit(samples.verdict("te:api=op", Outcome.CRASHED)).result
    assert result.message.endswith("last output: bad memory")


def test_junit_carries_the_environment_and_the_tally() -> None:
    found = {item.name: item.value for item in suite_of(samples.seed()).properties()}  # type: ignore[no-untyped-call]
    assert (found["transformer_engine"], found["tally.MISSING"], found["exit_code"]) == ("2.17.1", "4", "1")


# Markdown


def tables_of(text: str) -> list[list[list[str]]]:
    """The cells of each table, as a Markdown parser that we did not write finds them."""
    tables: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline" and token.level > 3 and tables:
            tables[-1][-1].append("".join(child.content for child in token.children or []))
    return tables


@every_report
def test_markdown_is_short_enough_for_an_issue(made: Callable[[], Report]) -> None:
    assert len(markdown.text(made())) < 65_536


def test_markdown_counts_the_cases_it_leaves_out() -> None:
    text = markdown.text(samples.many())
    listed = len(tables_of(text)[-1]) - 1
    assert f"{1500 - listed} more cases left out here; all are in report.json." in text
    assert listed > 100


def test_markdown_keeps_the_gravest_cases_when_it_must_cut() -> None:
    listed = [row[1] for row in tables_of(markdown.text(samples.many()))[-1][1:]]
    assert listed[:125] == ["MISSING"] * 125


def test_markdown_leaves_no_case_out_where_there_is_room() -> None:
    text = markdown.text(samples.seed())
    assert "left out" not in text
    assert len(tables_of(text)[-1]) == 13


def test_markdown_stays_short_when_every_why_is_long_and_different() -> None:
    findings = [samples.finding(Outcome.RAISED, "`|" + chr(97 + i % 26) * (2000 + i)) for i in range(200)]
    verdicts = [samples.verdict(f"te:api=op:seed={i}", Outcome.RAISED, findings=[f]) for i, f in enumerate(findings)]
    text = markdown.text(samples.report(verdicts))
    assert len(text) < 65_536
    assert "more findings left out here" in text


def test_markdown_shows_a_why_as_it_was_written() -> None:
    text = markdown.text(samples.report([samples.verdict("te:api=op", Outcome.RAISED)]))
    html = MarkdownIt("commonmark").render(text)
    assert "found RuntimeError: a | pipe, `ticks` and strides (0, 0) &lt;not&gt; supported" in html


def test_markdown_tables_have_as_many_cells_in_each_row_as_in_the_head() -> None:
    for table in tables_of(markdown.text(samples.every_outcome())):
        assert {len(row) for row in table} == {len(table[0])}


# All of them together


def test_a_run_leaves_every_file_that_was_asked_for_and_lists_them(tmp_path: Path) -> None:
    console = Console(width=100, file=io.StringIO())
    tell(formats.of_run(["junit", "markdown"], tmp_path, console, quiet=False), samples.seed())
    names = "journal.jsonl, junit.xml, observations.jsonl, report.csv, report.json, report.md"
    assert f"report in {tmp_path}: {names} " in " ".join(_written(console).split())


def test_the_list_of_files_breaks_between_their_names(tmp_path: Path) -> None:
    folder = tmp_path / ("long-name-of-a-run" * 4)
    console = Console(width=40, file=io.StringIO())
    tell(formats.of_run(["junit"], folder, console, quiet=True), samples.seed())
    told = _written(console).partition("report in")[2].splitlines()
    assert told[:4] == ["", f"  {folder}:", "  journal.jsonl, junit.xml,", "  observations.jsonl, report.csv,"]


def test_a_run_that_ends_here_and_one_that_ended_long_ago_are_told_apart(tmp_path: Path) -> None:
    console = Console(width=100, file=io.StringIO())
    tell(formats.of_run([], tmp_path, console, quiet=True), samples.seed())
    assert _written(console).endswith("\nexit code 1: findings · 12.5 s\n")
    assert shown(samples.seed()).endswith("\nthe run's exit code was 1: findings · it took 12.5 s\n")


def test_steps_of_the_ladder_that_no_one_sees_are_told_apart_from_faults() -> None:
    def proved(*survived: str) -> str:
        mutants = Mutants(killed=9, of=9 + len(survived), survived=list(survived))
        return proof([samples.verdict("torch:api=loop", mutants=mutants)])

    assert proved() == "9 of 9 faults put into 1 passed case were seen"
    measured = "9 of 11 faults put into 1 passed case were seen; 1 of the others are steps of epsilon_*, a measure and"
    assert proved("wgrad_epsilon_1", "wgrad_doubled").startswith(measured)


def test_quiet_prints_the_table_and_the_summary_alone(tmp_path: Path) -> None:
    console = Console(width=100, file=io.StringIO())
    tell(formats.of_run([], tmp_path, console, quiet=True), samples.seed())
    assert _written(console).startswith("provider te")


def test_a_finished_run_is_rendered_again_from_its_folder(tmp_path: Path) -> None:
    tell(Journal(tmp_path), samples.seed())
    console = Console(width=100, file=io.StringIO())
    formats.render(read(tmp_path), ["table", "csv", "junit", "markdown"], tmp_path, console)
    assert (tmp_path / "report.md").read_text() == markdown.text(samples.seed())
    assert "executed 12 of 12 asked (100%)" in _written(console)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown format 'yaml'; the formats are: table, json, csv, junit, markdown"):
        formats.of_run(["yaml"], tmp_path / "run", Console(), quiet=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*: Not a directory; expected a folder that can be"):
        Journal(tmp_path / "file" / "run")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "report.md", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "report.md", "new \ud800")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_reporter_that_cannot_write_does_not_silence_the_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failing = FileReporter(tmp_path / "file" / "report.json", report_json.text)
    working = FileReporter(tmp_path / "report.json", report_json.text)
    with pytest.raises(GradcheckError, match="cannot write"):
        Everyone([failing, working]).closed(samples.seed())
    assert read(tmp_path) == samples.seed()


def test_whatever_one_reporter_raises_the_others_write_their_files(tmp_path: Path) -> None:
    failing = FileReporter(tmp_path / "report.md", lambda _: "\ud800")
    working = FileReporter(tmp_path / "report.json", report_json.text)
    with pytest.raises(UnicodeEncodeError):
        Everyone([failing, working]).closed(samples.seed())
    assert read(tmp_path) == samples.seed()


def test_a_table_that_cannot_be_printed_costs_no_file_and_is_no_failure_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=100)
    tell(formats.of_run([], tmp_path, console, quiet=True), samples.seed())
    assert (tmp_path / "report.csv").exists()
    assert read(tmp_path) == samples.seed()
    assert "gradcheck: expected to print the report, found UnicodeEncodeError: " in capsys.readouterr().err


def test_the_table_comes_after_the_files_that_it_lists(tmp_path: Path) -> None:
    console = Console(width=100, file=io.StringIO())
    formats.render(samples.seed(), ["table", "markdown"], tmp_path, console)
    assert _written(console).startswith("wrote ")
    assert f"report in {tmp_path}: report.md " in " ".join(_written(console).split())


def test_what_goes_into_a_file_has_no_blanks_at_the_end_of_its_lines() -> None:
    log = io.StringIO()
    Console(file=cast("io.StringIO", PatientOutput(log)), width=20).print(Padding("a\n\n  b ", (0, 4)))
    assert log.getvalue() == "    a\n\n      b\n"


def test_a_reporter_that_hears_nothing_says_nothing() -> None:
    tell(Silent(), samples.every_outcome())


def test_printable_text_keeps_words_and_drops_what_moves_a_cursor() -> None:
    assert printable("a\x1b[2Kb\x1b]0;title\x07c\r\nd\x08\ud800é🙂") == "abc\ndé🙂"


def test_an_excerpt_says_how_much_it_cut() -> None:
    assert excerpt("abc " * 100, 7) == "abc abc ... (392 more characters in report.json)"


def test_reporters_import_without_pandas_and_torch() -> None:
    code = (
        "import sys, gradcheck_cli.reporters.formats\n"
        "assert not {'pandas', 'torch', 'transformer_engine'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_report_that_was_changed_by_hand_is_not_read(tmp_path: Path) -> None:
    report = samples.every_outcome()
    (tmp_path / "report.json").write_text(report_json.text(report), encoding="utf-8")
    assert read(tmp_path) == report
    changed = msgspec.structs.replace(report, tally=msgspec.structs.replace(report.tally, executed=0))
    (tmp_path / "report.json").write_text(report_json.text(changed), encoding="utf-8")
    with pytest.raises(UsageError, match="was changed after it was written"):
        read(tmp_path)


def test_a_verdict_milder_than_its_findings_is_not_read(tmp_path: Path) -> None:
    report = samples.every_outcome()
    milder = [msgspec.structs.replace(verdict, outcome=Outcome.PASSED) for verdict in report.verdicts]
    changed = msgspec.structs.replace(report, verdicts=milder, tally=tally(milder))
    (tmp_path / "report.json").write_text(report_json.text(changed), encoding="utf-8")
    with pytest.raises(UsageError, match="not its gravest finding"):
        read(tmp_path)


def test_a_picture_folds_the_command_that_shows_a_finding_again() -> None:
    report = samples.seed()
    last = next(verdict.case for verdict in report.verdicts if verdict.outcome is Outcome.MISSING).rpartition(":")[2]
    assert last[-8:] in picture.text(report)


def test_what_a_picture_folds_stays_indented() -> None:
    case = f"torch:api=loop:m_splits={','.join(map(str, range(1, 60)))}"
    report = samples.report([samples.verdict(case, Outcome.RAISED)])
    begins = re.findall(r'x="([\d.]+)"[^>]*>(?=run:|[^<]*58,59)', picture.text(report))
    assert begins == ["24.4", "24.4"]  # two columns of 12.2


def test_a_picture_drawn_later_is_that_of_the_run() -> None:
    drawn = picture.text(samples.seed()).replace("&#160;", " ")
    assert "exit code 1: findings" in drawn
    assert "the run's exit code" not in drawn
