"""Does each public report come out as it is recorded, and is a record that is not true told? Through real workers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from commands import Done, child, typed
from report_samples import verdict

from gradcheck_cli import pipeline, selection
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.judge import public
from gradcheck_cli.judge.known import applies
from gradcheck_cli.judge.public import PublicRecord
from gradcheck_cli.matrices import bug_files, matrix, public_record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.known import Placed
from gradcheck_cli.records.public import PublicReport, Recorded
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.read import read

ROOT = Path(__file__).parent.parent
RECORD = matrix.public_reports()
CAUGHT = [one for one in RECORD if one.case]
UPSTREAM = [(one.name, it) for one in CAUGHT for it in one.case if it.part == "upstream" and it.case.startswith("te:")]
ON_HOPPER = Environment(versions={"transformer_engine": "2.17.1+2e559f06"}, device="cuda:0", compute_capability=(9, 0))
WGRAD = "te:api=module:path=native:single_grouped_weight=1"


def named(name: str) -> PublicReport:
    return next(one for one in RECORD if one.name == name)


# The whole record, on this machine


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """All that runs without Transformer Engine."""
    folder = tmp_path_factory.mktemp("bugs") / "run"
    asked = ("--provider", "faults", "--provider", "torch", "--device", "cpu", "--format", "markdown")
    return child("run", "--matrix", "bugs", *asked, "--output", str(folder)), folder


def test_every_report_that_has_a_case_comes_out_as_it_is_recorded(whole: tuple[Done, Path]) -> None:
    done, folder = whole
    report = read(folder)
    assert {one.name for one in report.reproduced} == {one.name for one in CAUGHT}
    assert [one for report in report.reproduced for one in report.cases if one.state != "as recorded"] == []
    assert done.code == 0
    assert f"{len(CAUGHT)} public reports · {len(CAUGHT)} as recorded" in done.out


def test_every_report_has_a_fault_that_was_found(whole: tuple[Done, Path]) -> None:
    for one in read(whole[1]).reproduced:
        assert [it for it in one.cases if it.part == "faulty"] != []
        assert [it for it in one.cases if it.part == "sound" and it.found != "PASSED"] == []


def test_what_was_found_carries_the_links_of_its_reports(whole: tuple[Done, Path]) -> None:
    red = {one.case: one.known for one in read(whole[1]).verdicts if not one.outcome.green}
    assert red.keys() == {it.case for one in CAUGHT for it in one.case if it.case in red}
    assert named("b3").links[0] in red["faults:api=wgrad_doubled_before_each:fuse_wgrad_accumulation=1:microbatches=3"]
    assert all(red.values())


def test_the_tables_have_a_row_for_each_report_with_its_link(whole: tuple[Done, Path]) -> None:
    done, folder = whole
    rows = {line.split()[0] for line in done.out.rpartition("its fault, found as")[2].splitlines() if line.split()}
    assert rows >= {one.name for one in CAUGHT}
    written = (folder / "report.md").read_text(encoding="utf-8")
    assert [one.name for one in CAUGHT if f"| {one.links[0]} |" not in written] == []


def test_a_run_that_is_judged_again_is_held_against_the_record(whole: tuple[Done, Path]) -> None:
    assert typed("judge", str(whole[1])).code == 0


ALTERED = {
    "another outcome": {"outcome": Outcome.MISSING},
    "another role": {"role": "dgrad"},
    "another diagnosis": {"diagnosis": "halved"},
    "a fault where it passed": {"case": "torch:api=loop", "outcome": Outcome.INEXACT, "role": "wgrad"},
    "a fault that its mutants did not have": {"case": "torch:api=op_mlp", "mutants": ["wgrad_padding_row"]},
}


@pytest.mark.parametrize("altered", ALTERED.values(), ids=ALTERED)
def test_a_record_that_is_not_true_is_told_and_is_a_finding(
    whole: tuple[Done, Path], altered: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = named("a7")
    wrong = msgspec.structs.replace(right, case=[msgspec.structs.replace(right.case[0], **altered)])
    monkeypatch.setattr(matrix, "public_reports", lambda _: [wrong, *(one for one in RECORD if one is not right)])
    done = typed("judge", str(whole[1]))
    assert done.code == 1
    assert "otherwise: a7" in done.out
    assert "OTHERWISE" in done.out


def test_a_finding_in_another_role_than_the_recorded_is_told(whole: tuple[Done, Path]) -> None:
    verdicts = {one.case: one for one in read(whole[1]).verdicts}
    stale = verdicts["faults:api=fprop_stale_weight:single_grouped_weight=1:optimizer=sgd"]
    other = msgspec.structs.replace(stale.findings[0], slot="dgrad[0]", diagnosis="zero")
    both = msgspec.structs.replace(stale, findings=[*stale.findings, other])
    one = next(one for one in named("a9").case if one.case == stale.case)
    assert (public.holds(one, stale), public.holds(one, both)) == (True, False)
    told = public.found_as(both, whole=True)
    assert told == "fprop INEXACT (holds the weight of microbatch 0) and dgrad INEXACT (zero)"


def test_a_parameter_that_is_changed_beside_the_recorded_role_is_no_other_role(whole: tuple[Done, Path]) -> None:
    verdicts = {one.case: one for one in read(whole[1]).verdicts}
    lost = verdicts["faults:api=wgrad_requires_grad_lost:moved=to_dtype:bias=1"]
    assert {one.role for one in lost.findings} == {"wgrad", "weight"}
    assert public.holds(named("a5").case[0], lost)


# A part of it


def test_one_report_can_be_asked_for(tmp_path: Path) -> None:
    asked = ("--provider", "faults", "--provider", "torch", "--device", "cpu")
    done = child("run", "--matrix", "bugs/b7", *asked, "--output", str(tmp_path / "run"))
    (one,) = read(tmp_path / "run").reproduced
    assert (done.code, one.name, len(one.cases)) == (0, "b7", 2)


def test_a_run_without_the_record_has_red_faults(tmp_path: Path) -> None:
    case = named("b7").case[0].case
    done = child("run", "--case", case, "--device", "cpu", "--output", str(tmp_path / "run"))
    assert (done.code, read(tmp_path / "run").reproduced) == (1, [])


def test_its_cases_are_listed_and_filtered_as_those_of_any_matrix() -> None:
    assert typed("list", "--matrix", "bugs/b7").out.split() == [one.case for one in named("b7").case]
    assert set(typed("list", "--matrix", "bugs", "--provider", "te").out.split()) == {one.case for _, one in UPSTREAM}
    only = typed("list", "--matrix", "bugs", "-k", "api=wgrad_doubled_before_each").out.split()
    assert only == ["faults:api=wgrad_doubled_before_each:fuse_wgrad_accumulation=1:microbatches=3"]


def test_no_case_of_it_is_excluded() -> None:
    asked = selection.Asked(matrix="bugs", provider=["faults", "torch", "te"])
    selected = selection.select(asked)
    assert selected.excluded == ()
    assert {str(case) for case in selected.cases} == {it.case for one in CAUGHT for it in one.case}


def test_a_report_that_nothing_catches_says_why() -> None:
    done = typed("list", "--matrix", "bugs/j1")
    assert done.code == NothingSelected.exit_code
    assert named("j1").out_of_reach in done.err


def test_a_report_that_is_not_there_is_told_with_those_that_are() -> None:
    done = typed("list", "--matrix", "bugs/z1")
    assert done.code == UsageError.exit_code
    assert "bugs/ and one of a1, a3," in done.err


def test_a_case_of_the_record_has_its_own_mutants_and_time_limit() -> None:
    record = PublicRecord(RECORD)
    chain = record.job(pipeline.job(Case.parse("torch:api=op_mlp"), "fast"))
    assert {"wgrad_fc2_missing", "dgrad_rows_into_first"} <= set(chain.mutants)
    assert "bgrad_zeroed" not in chain.mutants
    assert record.job(pipeline.job(Case.parse("faults:api=hang:m_splits=uneven"))).limit == 3
    other = pipeline.job(Case.parse("torch:api=loop:seed=7"), "fast")
    assert record.job(other) == other


# What is recorded of Transformer Engine


def placed(case: str, outcome: Outcome, environment: Environment = ON_HOPPER) -> Placed:
    return Placed(case=Case.parse(case), verdict=verdict(case, outcome), environment=environment)


def test_a_version_that_nobody_has_seen_is_not_recorded_and_a_refused_case_not_executed() -> None:
    record = PublicRecord([named("a1")])
    newer = msgspec.structs.replace(ON_HOPPER, versions={"transformer_engine": "2.99"})
    for environment, outcome, state in (
        (newer, Outcome.PASSED, "unrecorded"),
        (ON_HOPPER, Outcome.REFUSED, "not executed"),
        (ON_HOPPER, Outcome.PASSED, "otherwise"),
    ):
        (told,) = record.told([placed(WGRAD, outcome, environment)])
        assert [one.state for one in told.cases] == [state]


def runs() -> list[Report]:
    return [read(file.parent) for file in sorted((ROOT / "reports").rglob("report.json"))]


def test_what_is_recorded_of_transformer_engine_is_what_the_recorded_runs_saw() -> None:
    seen: set[tuple[str, str]] = set()
    for report in runs():
        ran = [
            Placed(case=Case.of(one.axes), verdict=one, environment=report.environment)
            for one in report.verdicts
            if one.case.startswith("te:")
        ]
        told = PublicRecord(RECORD).told(ran)
        assert [it for one in told for it in one.cases if it.state == "otherwise"] == []
        where = {one.name: [it.case for it in one.cases if it.state == "as recorded"] for one in told}
        seen |= {
            (name, f"{it.case} {it.versions}")
            for name, it in UPSTREAM
            if it.case in where.get(name, []) and applies(it, report.environment)
        }
    assert seen == {(name, f"{it.case} {it.versions}") for name, it in UPSTREAM}


# The files


@pytest.mark.parametrize("report", RECORD, ids=lambda one: one.name)
def test_a_report_has_what_a_reader_needs(report: PublicReport) -> None:
    assert re.fullmatch(r"[a-l]\d+", report.name)
    assert all(link.startswith("https://github.com/") for link in report.links)
    assert "" not in (report.title, report.hit)
    assert len(report.links) == len(set(report.links)) > 0


def test_every_report_that_a_fault_of_the_battery_cites_is_there() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    cited = dict(re.findall(r"^\| ([A-L]\d+) \| \[[^]]*\]\((\S+)\) ", told, flags=re.MULTILINE))
    assert {name: link for name, link in cited.items() if link not in named(name.lower()).links} == {}
    assert cited.keys() != set()


WRONG = {
    "a key that is none": ('nonsense = 1\n[[case]]\ncase = "torch:api=loop"\noutcome = "PASSED"', "nonsense"),
    "neither a case nor a reason": ("", "out_of_reach"),
    "both": ('out_of_reach = "x"\n[[case]]\ncase = "torch:api=loop"\noutcome = "PASSED"', "out_of_reach"),
    "a case that is none": ('[[case]]\ncase = "torch:api=loop:depth=1"\noutcome = "PASSED"', "depth"),
    "an api that is none": ('[[case]]\ncase = "faults:api=nothing"\noutcome = "PASSED"', "nothing"),
    "an outcome that is none": ('[[case]]\ncase = "torch:api=loop"\noutcome = "FINE"', "FINE"),
    "a mutant that is none": ('[[case]]\ncase = "torch:api=loop"\noutcome = "PASSED"\nmutants = ["it"]', "'it'"),
    "a version of what has none": (
        '[[case]]\ncase = "torch:api=loop"\noutcome = "PASSED"\nversions = { numpy = "1" }',
        "numpy",
    ),
    "a version that is none": (
        '[[case]]\ncase = "torch:api=loop"\noutcome = "PASSED"\nversions = { torch = "new" }',
        "'new'",
    ),
    "no TOML": ("[[case", "not TOML"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_file_with_something_wrong_is_told_by_its_name(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "a1.toml"
    file.write_text(f'title = "t"\nlinks = ["https://github.com/x"]\nhit = "1"\n{text}\n', encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        bug_files.read(file)
    assert str(file) in str(raised.value)
    assert told in str(raised.value)


def test_the_document_is_what_the_files_say() -> None:
    written = (ROOT / public_record.FILE).read_text(encoding="utf-8")
    assert written == public_record.text(RECORD), "run python -m gradcheck_cli.matrices.public_record"


def test_the_document_counts_the_reports() -> None:
    head = public_record.text(RECORD).partition("| report |")[0]
    assert [
        int(number) for number in re.findall(r"\b\d+(?= reports| are caught| in a faulty| by the fault)", head)
    ] == [
        len(RECORD),
        len(CAUGHT),
        len([one for one in CAUGHT if not one.lacks]),
        len([one for one in CAUGHT if one.lacks]),
        len(RECORD) - len(CAUGHT),
    ]


def test_the_readme_counts_them_as_well() -> None:
    told = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    plain = sum(not one.lacks for one in CAUGHT)
    assert f"of {len(RECORD)} public reports, " in told
    assert f"of the {len(CAUGHT)}, {plain} are called as the report says, and {len(CAUGHT) - plain} lack" in told
    assert f"why {len(RECORD) - len(CAUGHT)} are caught by nothing" in told


def test_a_part_of_a_report_is_known_by_its_entry() -> None:
    assert Recorded(case="faults:api=wgrad_nan", outcome=Outcome.NONFINITE).part == "faulty"
    assert Recorded(case="torch:api=op_mlp", outcome=Outcome.PASSED, mutants=["pgrad_nan"]).part == "faulty"
    assert Recorded(case="torch:api=loop", outcome=Outcome.PASSED).part == "sound"
    assert Recorded(case="te:api=op", outcome=Outcome.PASSED, versions={"torch": ">1"}).part == "upstream"


def test_the_record_is_written_into_the_report_as_json(whole: tuple[Done, Path]) -> None:
    report = json.loads((whole[1] / "report.json").read_text(encoding="utf-8"))
    one = next(one for one in report["reproduced"] if one["name"] == "l7")
    assert [(it["part"], it["state"]) for it in one["cases"]] == [
        ("faulty", "as recorded"),
        ("sound", "as recorded"),
        ("upstream", "as recorded"),
    ]
