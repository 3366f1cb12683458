"""Is a failure that is known green, and a known file that is not true red? On real runs of faulty layers."""

from __future__ import annotations

import csv
import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from commands import Done, child, typed
from junitparser import JUnitXml
from known_files import ALL, BOTH, DOUBLED, LINK, TODAY, UNTOUCHED, entry, written

from gradcheck_cli import known_file
from gradcheck_cli.known_file import SHIPPED

REPORTS = Path(__file__).parent.parent / "reports"
MATRIX = """
[[block]]
provider = "faults"
api = ["wgrad_doubled", "wgrad_untouched", "wgrad_in_both"]
fuse_wgrad_accumulation = [0, 1]

[[block]]
provider = "torch"
api = "loop"
"""
ASKED = ("--provider", "torch", "--provider", "faults", "--device", "cpu", "--mutants", "none")
RED = [
    "faults:api=wgrad_doubled",
    "faults:api=wgrad_doubled:fuse_wgrad_accumulation=1",
    "faults:api=wgrad_in_both",
    "faults:api=wgrad_untouched:fuse_wgrad_accumulation=1",
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("matrix") / "faulty.toml"
    file.write_text(MATRIX, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def folder(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a whole matrix: four red cases of three kinds, three green ones."""
    where = tmp_path_factory.mktemp("run") / "run"
    done = child("run", *ASKED, "--matrix", str(matrix), "--output", str(where))
    assert done.code == 1, done.err
    return where


def judged(folder: Path, file: Path | str) -> Done:
    return typed("judge", str(folder), "--known", str(file))


def lines_of(done: Done, file: Path) -> list[str]:
    """What is said of the entries of a file, each in one line."""
    return [line.strip() for line in done.out.splitlines() if line.strip().startswith(f"{file}, line ")]


# A run with a known file


@pytest.fixture(scope="module")
def known_run(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """The same run with every failure known, in every format."""
    where = tmp_path_factory.mktemp("known")
    file = written(where / "mine.toml", *map(entry, ALL))
    formats = [part for name in ("junit", "markdown", "github") for part in ("--format", name)]
    output = ("--matrix", str(matrix), "--output", str(where / "run"))
    return child("run", *ASKED, *output, "--known", str(file), *formats), where / "run"


def test_a_run_of_which_every_failure_is_known_ends_with_0(known_run: tuple[Done, Path]) -> None:
    done, _ = known_run
    assert (done.code, "4 known failures, green here: 2 INEXACT · 1 UNEXPECTED · 1 MISSING" in done.out) == (0, True)


def test_known_stands_beside_the_outcome_in_report_and_journal(known_run: tuple[Done, Path]) -> None:
    _, where = known_run
    journal = [json.loads(line) for line in (where / "journal.jsonl").read_text("utf-8").splitlines()]
    in_journal = [line["verdict"] for line in journal if line["event"] == "verdict"]
    for verdicts in (json.loads((where / "report.json").read_text("utf-8"))["verdicts"], in_journal):
        told = {verdict["case"]: (verdict["outcome"], verdict["known"]) for verdict in verdicts}
        assert sorted(case for case, (_, known) in told.items() if known == LINK) == RED
        assert {outcome for outcome, known in told.values() if not known} == {"PASSED"}


def test_the_csv_has_a_column_for_it(known_run: tuple[Done, Path]) -> None:
    rows = list(csv.DictReader((known_run[1] / "report.csv").read_text("utf-8").splitlines()))
    assert sorted(row["case"] for row in rows if row["known"] == LINK and row["outcome"] != "PASSED") == RED
    assert {row["known"] for row in rows if row["outcome"] == "PASSED"} == {""}


def test_junit_skips_it_and_says_why(known_run: tuple[Done, Path]) -> None:
    suites = JUnitXml.fromfile(str(known_run[1] / "junit.xml"))
    skipped = {case.name: case.result[0].message for suite in suites for case in suite if case.result}
    assert (suites.failures, suites.errors, suites.skipped) == (0, 0, 4)
    assert sorted(skipped) == RED
    assert all(message.startswith(f"known failure {LINK}: ") for message in skipped.values())


def test_table_and_markdown_count_it_and_name_its_link(known_run: tuple[Done, Path]) -> None:
    done, where = known_run
    rows = [line.split() for line in done.out.splitlines() if line.startswith("wgrad_in_both ")]
    assert [row[1:7] for row in rows] == [["0", "0", "bf16", "1", "1", "ok"], ["0", "1", "bf16", "1", "ok", "ok"]]
    markdown = (where / "report.md").read_text("utf-8")
    assert "| dtype | cases | known | fprop |" in markdown
    assert "UNEXPECTED (known)" in markdown
    assert f"· known: {LINK}" in done.out


def test_no_annotation_is_made_of_it(known_run: tuple[Done, Path]) -> None:
    assert "::error" not in known_run[0].out


def test_last_failed_leaves_it_out(known_run: tuple[Done, Path]) -> None:
    done = typed("run", "--last-failed", str(known_run[1]))
    assert (done.code, "was green" in done.err) == (5, True)


def test_judged_without_the_file_it_is_as_red_as_before(known_run: tuple[Done, Path]) -> None:
    assert typed("judge", str(known_run[1])).code == 1


def test_a_known_failure_does_not_stop_a_run_at_maxfail(matrix: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", *map(entry, ALL))
    output = ("--matrix", str(matrix), "--output", str(tmp_path / "run"))
    done = child("run", *ASKED, *output, "--known", str(file), "--maxfail", "1", "-k", "dtype=bf16")
    assert (done.code, "executed 7 of 7" in done.out) == (0, True)


# What is not known, and what is no longer true


def test_one_failure_that_no_entry_covers_is_a_finding(folder: Path, tmp_path: Path) -> None:
    assert judged(folder, written(tmp_path / "mine.toml", entry(DOUBLED), entry(UNTOUCHED))).code == 1


TOO_WIDE = {"expression": '"api=wgrad_in_both"'}
COMPLAINTS: dict[str, tuple[dict[str, str], str]] = {
    "a case passes": (BOTH | TOO_WIDE, "found PASSED in 1 of the 2 cases it covers"),
    "another outcome": (
        BOTH | {"outcome": '"MISSING"'},
        "expected MISSING wgrad (main_grad written), found UNEXPECTED wgrad",
    ),
    "another diagnosis": (BOTH | {"diagnosis": '"none"'}, "found UNEXPECTED wgrad[0] (main_grad written)"),
    "another role": (
        BOTH | {"role": '"dgrad"'},
        "expected UNEXPECTED dgrad (main_grad written), found UNEXPECTED wgrad",
    ),
    "its day is past": (BOTH | {"expires": str(TODAY - timedelta(days=1))}, "expired after"),
    "no such case": (BOTH | {"expression": '"api=wgrad_in_both and seed=9"'}, "and seed=9 holds, found none"),
}


@pytest.mark.parametrize(("third", "said"), COMPLAINTS.values(), ids=COMPLAINTS)
def test_what_is_not_true_of_an_entry_is_said_in_one_line_with_its_place(
    folder: Path, tmp_path: Path, third: dict[str, str], said: str
) -> None:
    file = written(tmp_path / "mine.toml", entry(DOUBLED), entry(UNTOUCHED), entry(third))
    done = judged(folder, file)
    (line,) = lines_of(done, file)
    place, _, why = line.partition(": ")
    at = int(place.removeprefix(f"{file}, line "))
    assert file.read_text("utf-8").splitlines()[at - 1 : at + 1] == ["[[known]]", f"expression = {third['expression']}"]
    assert said in why
    # An entry that matches nothing leaves its case uncovered: a finding, which goes before.
    assert done.code == (1 if "seed=9" in said else 4)


def test_an_entry_of_its_last_day_still_holds(folder: Path, tmp_path: Path) -> None:
    last = BOTH | {"expires": str(TODAY)}
    assert judged(folder, written(tmp_path / "mine.toml", entry(DOUBLED), entry(UNTOUCHED), entry(last))).code == 0


def test_findings_go_before_an_entry_that_is_not_true(folder: Path, tmp_path: Path) -> None:
    assert judged(folder, written(tmp_path / "mine.toml", entry(DOUBLED), entry(BOTH | TOO_WIDE))).code == 1


def test_an_entry_without_a_case_is_red_alone(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", *map(entry, ALL), entry(DOUBLED, expression='"api=loop and seed=9"'))
    assert judged(folder, file).code == 4


@pytest.mark.parametrize("narrowed", (("-k", "fuse_wgrad"), ("--case", RED[3]), ("--shard", "2/7")), ids=lambda a: a[0])
def test_part_of_a_matrix_says_nothing_of_an_entry_without_a_case(
    matrix: Path, tmp_path: Path, narrowed: tuple[str, str]
) -> None:
    file = written(tmp_path / "mine.toml", *map(entry, ALL), entry(DOUBLED, expression='"api=loop and seed=9"'))
    named = () if narrowed[0] == "--case" else ("--matrix", str(matrix))
    done = child("run", *ASKED, *named, *narrowed, "--known", str(file), "--output", str(tmp_path / "run"))
    assert (done.code, lines_of(done, file)) == (0, [])


ELSEWHERE = {
    "another torch": {"versions": '{ torch = ">=99" }'},
    "no Transformer Engine": {"versions": '{ transformer-engine = ">=2" }'},
    "another architecture": {"architecture": '["sm90"]'},
}


@pytest.mark.parametrize("where", ELSEWHERE.values(), ids=ELSEWHERE)
def test_an_entry_for_elsewhere_is_neither_matched_nor_missed(
    folder: Path, tmp_path: Path, where: dict[str, str]
) -> None:
    past = where | {"expires": "2020-01-01"}
    silent = written(tmp_path / "silent.toml", *map(entry, ALL), entry(DOUBLED, past, expression='"seed=9"'))
    assert (judged(folder, silent).code, lines_of(judged(folder, silent), silent)) == (0, [])
    unmatched = written(tmp_path / "unmatched.toml", entry(DOUBLED, where), entry(UNTOUCHED), entry(BOTH))
    assert judged(folder, unmatched).code == 1


def test_an_entry_for_here_matches(folder: Path, tmp_path: Path) -> None:
    here = {"versions": '{ torch = ">=2.6" }', "architecture": '["sm90", "cpu"]'}
    assert (
        judged(folder, written(tmp_path / "mine.toml", entry(DOUBLED, here), entry(UNTOUCHED), entry(BOTH))).code == 0
    )


def test_junit_and_annotations_tell_what_is_not_true(folder: Path, matrix: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", entry(DOUBLED), entry(UNTOUCHED), entry(BOTH | TOO_WIDE))
    output = ("--matrix", str(matrix), "--output", str(tmp_path / "run"))
    done = child("run", *ASKED, *output, "--known", str(file), "--format", "junit", "--format", "github")
    suites = JUnitXml.fromfile(str(tmp_path / "run" / "junit.xml"))
    failed = [case for suite in suites for case in suite if case.result and case.result[0].type == "mended"]
    assert (done.code, suites.tests, suites.failures) == (4, 8, 1)
    assert [(case.classname, case.name) for case in failed] == [("known", f"{file}, line {line_of(file, 3)}")]
    annotated = [line for line in done.out.splitlines() if line.startswith("::error")]
    assert len(annotated) == 1
    assert annotated[0].startswith(f"::error title=gradcheck%3A known failure mended::{file}, line ")
    assert "exit code 4: a known failure is fixed, stale or expired" in done.out


def line_of(file: Path, number: int) -> int:
    heads = [at for at, line in enumerate(file.read_text("utf-8").splitlines(), 1) if line == "[[known]]"]
    return heads[number - 1]


# The shipped file, on what was recorded

RECORDED = {
    "te-2.17.1-h200/core-cublas-13.5": 0,
    "te-2.17.1-h200/core-cublas-13.1": 0,
    "te-2.17.1-h200/issue-3234-cublas-13.5": 0,
    "te-2.17.1-h200/issue-3234-cublas-13.1": 0,
    "te-2.20.2-h200/core-cublas-13.5": 0,
    "te-2.20.2-h200/issue-3234-cublas-13.5": 0,
    "te-2.20.2-h200/core-cublas-13.1": 5,  # nothing is wrong with the file; the floor is another matter
}


@pytest.mark.parametrize(("name", "code"), RECORDED.items(), ids=RECORDED)
def test_the_shipped_file_is_true_of_what_was_recorded(name: str, code: int) -> None:
    done = judged(REPORTS / name, SHIPPED)
    assert ("cases/known.toml, line" in done.out, done.code) == (False, code)


def test_the_shipped_file_covers_no_other_failure() -> None:
    assert judged(REPORTS / "te-2.17.1-h200/fp16-bias-cublas-13.5", SHIPPED).code == 1


def test_nothing_applies_unless_it_is_asked_for() -> None:
    assert typed("judge", str(REPORTS / "te-2.17.1-h200/issue-3234-cublas-13.5")).code == 1


@pytest.mark.parametrize("version", ("2.14.1", "2.16.1", "2.18.0"))
def test_the_shipped_file_covers_every_version_that_was_seen_to_fail(version: str, tmp_path: Path) -> None:
    done = typed("known", "add", str(REPORTS / f"versions-h200/issue-3234-cublas-13.5/{version}"))
    assert (done.code, done.out.startswith("nothing to add")) == (0, True)


# `known add`


def added(folder: Path, file: Path, *more: str) -> Done:
    return typed("known", "add", str(folder), "--known", str(file), *more)


WRITE = ("--write", "--link", LINK, "--owner", "me")


def test_add_only_proposes(folder: Path, tmp_path: Path) -> None:
    done = added(folder, tmp_path / "new.toml")
    assert (done.code, done.out.count("[[known]]"), (tmp_path / "new.toml").exists()) == (0, 3, False)


def test_add_says_that_an_entry_holds_for_every_version(folder: Path, tmp_path: Path) -> None:
    unknown = shutil.copytree(folder, tmp_path / "unknown")
    (unknown / "journal.jsonl").unlink()  # which tells where each case ran
    report: dict[str, Any] = json.loads((unknown / "report.json").read_text("utf-8"))
    report["environment"]["versions"] = {}
    (unknown / "report.json").write_text(json.dumps(report), "utf-8")
    told = [added(run, tmp_path / "new.toml").out for run in (folder, unknown)]
    assert ["# an entry without versions holds for every one" in one for one in told] == [False, True]


@pytest.mark.parametrize("run", ("faults", "te-2.17.1-h200/fp16-bias-cublas-13.5", "te-2.17.1-h200/core-cublas-13.1"))
def test_what_add_writes_makes_the_run_green_but_for_the_floor(folder: Path, tmp_path: Path, run: str) -> None:
    where, file = folder if run == "faults" else REPORTS / run, tmp_path / "new.toml"
    assert added(where, file, *WRITE).code == 0
    done = judged(where, file)
    assert (lines_of(done, file), done.code in (0, 5)) == ([], True)
    assert added(where, file).out.startswith("nothing to add")


def test_add_names_the_seeds_rule() -> None:
    done = typed("known", "add", str(REPORTS / "te-2.17.1-h200/core-cublas-13.5"), "--known", "none-yet.toml")
    expressions = [line for line in done.out.splitlines() if line.startswith("expression")]
    rule = "provider=te and api=module and single_grouped_weight=1 and fuse_wgrad_accumulation"
    shared = "bias=0 and microbatches=2 and grad_output=random"
    assert expressions == [f'expression = "{rule}={fused} and {shared}"' for fused in (0, 1)]


def test_an_entry_of_a_part_of_a_matrix_is_not_about_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    added(REPORTS / "te-2.17.1-h200/fp16-bias-cublas-13.5", file, *WRITE)
    done = judged(REPORTS / "te-2.17.1-h200/core-cublas-13.5", file)
    assert ("36 MISSING" in done.out, [line for line in lines_of(done, file) if "found none" not in line]) == (True, [])


def test_add_appends_and_leaves_every_byte_that_was_there(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    before = b"# mine\r\n" + entry(DOUBLED).replace("\n", "\r\n").encode() + b"# the end"
    file.write_bytes(before)
    done = added(folder, file, *WRITE)
    after = file.read_bytes()
    assert (done.code, after[: len(before)]) == (0, before)
    assert (after.count(b"[[known]]"), after.count(b"\n") == after.count(b"\r\n")) == (3, True)


def test_add_takes_the_day_that_it_is_told(folder: Path, tmp_path: Path) -> None:
    added(folder, tmp_path / "new.toml", *WRITE, "--expires", "2031-02-03")
    days = {str(one.expires) for one in known_file.load(str(tmp_path / "new.toml"))}
    assert days == {"2031-02-03"}


def test_add_takes_no_day_that_is_past(folder: Path, tmp_path: Path) -> None:
    done = added(folder, tmp_path / "new.toml", *WRITE, "--expires", str(TODAY - timedelta(days=1)))
    assert (done.code, (tmp_path / "new.toml").exists()) == (2, False)
    assert "expected a day that is not past" in done.err


@pytest.mark.parametrize("given", (("--link", LINK), ("--owner", "me"), ("--link", " ", "--owner", "me")), ids=str)
def test_nothing_is_written_without_a_link_and_an_owner(folder: Path, tmp_path: Path, given: tuple[str, ...]) -> None:
    done = added(folder, tmp_path / "new.toml", "--write", *given)
    assert (done.code, (tmp_path / "new.toml").exists()) == (2, False)
    assert "expected --link and --owner" in done.err


# `known prune`


def pruned(folder: Path, file: Path, *more: str) -> Done:
    return typed("known", "prune", str(folder), "--known", str(file), *more)


MENDED = entry(DOUBLED, expression='"provider=torch"')
WITHOUT_A_CASE = entry(DOUBLED, expression='"seed=9"')
CHANGED = entry(DOUBLED, expression='"api=wgrad_in_both and not fuse_wgrad"')
HALF = entry(BOTH | TOO_WIDE)
HALF_CHANGED = entry(DOUBLED, expression='"api=wgrad_in_both"')


def test_prune_only_says_what_it_would_do(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", entry(DOUBLED), MENDED)
    before = file.read_bytes()
    done = pruned(folder, file)
    assert (done.code, file.read_bytes()) == (0, before)
    assert done.out.splitlines()[0].startswith(
        f"remove {file}, line {line_of(file, 2)}: expected INEXACT wgrad (doubled), found PASSED"
    )
    assert done.out.splitlines()[-1] == "to remove 1 of 2 entries: --write"


def test_prune_removes_what_is_mended_or_without_a_case_with_its_comment_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    kept = [f"# kept {number}\n{text}" for number, text in enumerate((entry(DOUBLED), CHANGED, HALF, HALF_CHANGED))]
    gone = [f"# gone\n# for good\n{text}" for text in (MENDED, WITHOUT_A_CASE)]
    file = written(tmp_path / "mine.toml", "# head\n", kept[0], gone[0], kept[1], gone[1], *kept[2:])
    done = pruned(folder, file, "--write")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"removed 2 of 6 entries from {file}")
    assert file.read_text("utf-8") == "\n".join(["# head\n", *kept])


def test_prune_keeps_what_applies_elsewhere(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", entry(DOUBLED, expression='"seed=9"', architecture='["sm100"]'))
    first, last = pruned(folder, file, "--write").out.splitlines()
    assert first == f"keep {file}, line 1: it is about sm100, and no case ran there"
    assert last.startswith("nothing to prune")


def test_prune_keeps_what_the_rest_of_a_matrix_may_have(folder: Path, tmp_path: Path) -> None:
    part = shutil.copytree(folder, tmp_path / "part")
    narrowed(part / "report.json")
    file = written(tmp_path / "mine.toml", WITHOUT_A_CASE, MENDED)
    assert pruned(part, file, "--write").out.splitlines()[-1] == f"removed 1 of 2 entries from {file}"
    assert [one.expression for one in known_file.load(str(file))] == ["seed=9"]


def narrowed(path: Path) -> None:
    """Make a report one of a run with `-k`."""
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    report["run"]["command"] += ["-k", "dtype=bf16"]
    path.write_text(json.dumps(report), "utf-8")


def test_prune_on_a_version_that_does_not_have_the_fault_keeps_the_shipped_entries() -> None:
    done = typed("known", "prune", str(REPORTS / "te-2.20.2-h200/core-cublas-13.5"))
    *kept, last = done.out.splitlines()
    assert (done.code, len(kept), last.startswith("nothing to prune")) == (0, 2, True)
    assert all(": it is about transformer-engine >=2.14,<2.19 and sm90, and no case ran there" in line for line in kept)


# What cannot be done


@pytest.mark.parametrize("command", (("judge",), ("known", "prune")), ids=" ".join)
def test_a_known_file_that_is_not_there_is_a_usage_error(folder: Path, command: tuple[str, ...]) -> None:
    done = typed(*command, str(folder), "--known", "nowhere.toml")
    assert (done.code, done.out) == (2, "")
    assert "unknown known file 'nowhere.toml': expected known, which is shipped, or the path of a TOML file" in done.err


def test_run_reads_the_known_file_before_it_runs_anything(matrix: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", entry(DOUBLED, outcome='"WRONG"'))
    done = typed("run", *ASKED, "--matrix", str(matrix), "--known", str(file), "--output", str(tmp_path / "run"))
    assert (done.code, (tmp_path / "run").exists()) == (2, False)


@pytest.mark.parametrize("command", ("add", "prune"))
def test_a_folder_without_a_run_is_a_usage_error(tmp_path: Path, command: str) -> None:
    done = typed("known", command, str(tmp_path))
    assert (done.code, f"no run in {tmp_path}" in done.err) == (2, True)


def test_a_folder_is_no_known_file_also_where_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    done = added(folder, tmp_path)
    assert (done.code, done.out, f"{tmp_path} cannot be read: expected a TOML file" in done.err) == (2, "", True)


def test_a_file_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    done = added(folder, tmp_path / "file" / "new.toml", *WRITE)
    assert (done.code, "name another with --known" in done.err) == (2, True)


def test_judge_writes_nothing_into_the_folder_of_a_run(folder: Path) -> None:
    done = typed("judge", str(folder), "--format", "junit")
    assert (done.code, "--format junit: expected table or github" in done.err) == (2, True)
