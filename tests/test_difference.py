"""Is every change between two runs told, and does a gate stop at those that are for the worse?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from commands import ROOT, Done, typed
from hypothesis import given
from hypothesis import strategies as st
from report_samples import H200, RUN, report, verdict

from gradcheck_cli.judge.bounds import GROWN, LEAST_LEFT, LEAST_SECONDS
from gradcheck_cli.judge.difference import difference
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.difference import KINDS, Difference
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Finding, Margin, Outcome, Verdict

RECORDED = ROOT / "reports"
OLD, NEW = "te-2.17.1-h200", "te-2.20.2-h200"
CASE = "te:api=op:dtype=fp16"


def compared(old: Verdict, new: Verdict) -> Difference:
    return difference(report([old]), report([new]), {})


def kinds(found: Difference) -> list[str]:
    return [change.kind for change in found.changes]


def written(folder: Path, told: Report | dict[str, Any]) -> str:
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(to_json(told) if isinstance(told, Report) else json.dumps(told), "utf-8")
    return str(folder)


def recorded(name: str, *more: str) -> Done:
    return typed("diff", str(RECORDED / OLD / name), str(RECORDED / NEW / name), *more)


def counted(done: Done) -> dict[tuple[str, str, str, str], int]:
    """(kind, api and dtype, old, new) -> cases, from the JSON."""
    found: dict[tuple[str, str, str, str], int] = {}
    for change in json.loads(done.out)["changes"]:
        layer = f"{change['axes']['api']} {change['axes']['dtype']}"
        key = (change["kind"], layer, change["old"], change["new"])
        found[key] = found.get(key, 0) + 1
    return found


P, R, M, I, X, U = (  # noqa: E741
    Outcome.PASSED,
    Outcome.REFUSED,
    Outcome.MISSING,
    Outcome.INEXACT,
    Outcome.EXCLUDED,
    Outcome.UNTESTED,
)
# (old, new) -> what that is.
TRANSITIONS: dict[tuple[Outcome, Outcome], str] = {
    (P, M): "regression",
    (P, U): "regression",
    (P, Outcome.CRASHED): "regression",
    (P, Outcome.VACUOUS): "regression",
    (R, M): "regression",
    (M, P): "mended",
    (U, P): "mended",
    (P, R): "coverage lost",
    (P, X): "coverage lost",
    (R, P): "coverage gained",
    (M, R): "outcome",
    (M, I): "outcome",
    (R, X): "outcome",
}


@pytest.mark.parametrize(("pair", "kind"), TRANSITIONS.items(), ids=[f"{a.value}-{b.value}" for a, b in TRANSITIONS])
def test_a_transition_has_one_name_and_the_worse_ones_regress(pair: tuple[Outcome, Outcome], kind: str) -> None:
    found = compared(*(verdict(CASE, outcome) for outcome in pair))
    assert kinds(found) == [kind]
    assert found.regressed is (kind in ("regression", "coverage lost"))


@given(st.sampled_from(list(Outcome)), st.sampled_from(list(Outcome)))
def test_any_two_outcomes_are_told_apart_and_a_run_equals_itself(old: Outcome, new: Outcome) -> None:
    found = compared(verdict(CASE, old), verdict(CASE, new))
    assert (found.changes == []) is (old is new)
    assert found.regressed or not (old.green and not new.green)


def test_one_gradient_that_was_right_is_a_regression_behind_the_same_outcome() -> None:
    roles = {"fprop": P, "dgrad": P, "wgrad": I}
    found = compared(verdict(CASE, I, roles=roles), verdict(CASE, I, roles={**roles, "wgrad": P, "dgrad": I}))
    assert kinds(found) == ["regression"]
    assert found.changes[0].roles == {"dgrad": (P, I), "wgrad": (I, P)}


def test_another_path_is_told_and_is_no_regression() -> None:
    found = compared(verdict(CASE, effective={"path": "legacy"}), verdict(CASE, effective={"path": "native"}))
    assert [(one.kind, one.old, one.new) for one in found.changes] == [("path", "path=legacy", "path=native")]
    assert not found.regressed


def left(after_rounding: float) -> dict[str, Margin]:
    return {"wgrad": Margin(slot="wgrad[0]", ratio=0.9, after_rounding=after_rounding)}


MARGINS = {
    "fourfold": (0.1, 0.4, ["margin"]),
    "less than fourfold": (0.1, 0.39, []),
    "from nothing to a fifth of the bound": (0.0, 0.2, ["margin"]),
    "from nothing to next to nothing": (0.0, 0.19, []),
    "shrunk": (0.8, 0.1, []),
}


@pytest.mark.parametrize(("old", "new", "told"), MARGINS.values(), ids=MARGINS)
def test_an_error_that_grew_fourfold_is_told(old: float, new: float, told: list[str]) -> None:
    found = compared(verdict(CASE, margins=left(old)), verdict(CASE, margins=left(new)))
    assert (kinds(found), found.regressed) == (told, False)


SECONDS = {
    "twice, and seconds longer": (2.0, 4.0, ["slower"]),
    "twice, within what loading takes": (0.5, 1.7, []),
    "seconds longer, not twice": (10.0, 19.0, []),
    "quicker": (9.0, 1.0, []),
}


@pytest.mark.parametrize(("old", "new", "told"), SECONDS.values(), ids=SECONDS)
def test_a_case_that_takes_twice_as_long_is_told(old: float, new: float, told: list[str]) -> None:
    assert kinds(compared(verdict(CASE, seconds=old), verdict(CASE, seconds=new))) == told


def test_the_gravest_kind_stands_first_and_every_kind_is_explained() -> None:
    cases = [f"te:api=op:seed={number}" for number in range(3)]
    old = report([verdict(case, outcome) for case, outcome in zip(cases, (M, P, P), strict=True)])
    new = report([verdict(case, outcome) for case, outcome in zip(cases, (P, R, M), strict=True)])
    assert kinds(difference(old, new, {})) == ["regression", "coverage lost", "mended"]
    assert list(KINDS)[:3] == ["regression", "coverage lost", "mended"]


def test_cases_of_one_run_alone_are_listed_and_not_compared() -> None:
    other = "te:api=module"
    found = difference(report([verdict(CASE), verdict(other)]), report([verdict(CASE), verdict("te:api=op")]), {})
    assert (found.compared, found.only_old, found.only_new) == (1, [other], ["te:api=op"])


FP32 = "te:api=op:dtype=fp32"


def asked_with(*command: str, **options: str) -> Report:
    """A run without the case of fp32, asked for in these words."""
    return report([verdict(CASE)], command=["gradcheck", "run", *command], options=options)


GONE: dict[str, tuple[Report, Report, str]] = {
    "a run of the whole": (asked_with(), asked_with(), ""),
    "the same selection": (asked_with("-k", "api=op"), asked_with("-k", "api=op"), ""),
    "a selection that holds for it": (asked_with(), asked_with("-k", "api=op"), ""),
    "a selection without it": (asked_with(), asked_with("-k", "dtype=fp16"), "-k dtype=fp16"),
    "a selection of another version": (asked_with(), asked_with("-k", "new_axis=1"), ""),
    "one case": (asked_with(), asked_with(f"--case={CASE}"), f"--case {CASE}"),
    "another part": (asked_with("--shard", "1/2"), asked_with("--shard", "2/2"), "--shard 2/2"),
    "a variable": (asked_with(), asked_with(GRADCHECK_SHARD="2/2"), "--shard 2/2"),
}


@pytest.mark.parametrize(("old", "new", "excuse"), GONE.values(), ids=GONE)
def test_a_right_case_that_is_gone_is_coverage_lost_unless_nobody_asked_for_it(
    old: Report, new: Report, excuse: str
) -> None:
    had = msgspec.structs.replace(old, verdicts=[verdict(CASE), verdict(FP32), verdict("te:api=op:seed=1", M)])
    found = difference(had, new, {})
    assert (kinds(found), found.regressed) == (([], False) if excuse else (["coverage lost"], True))
    assert (found.not_asked, FP32 in found.only_old) == (excuse, True)


@pytest.mark.parametrize(("more", "code"), (((), 1), (("-k", "dtype=fp16"), 0)), ids=("whole", "narrowed"))
def test_what_is_gone_is_told_in_the_last_line(tmp_path: Path, more: tuple[str, ...], code: int) -> None:
    old = written(tmp_path / "old", report([verdict(CASE), verdict(FP32)], command=["gradcheck", "run"]))
    done = typed("diff", old, written(tmp_path / "new", asked_with(*more)))
    last = " ".join(done.out.split()).partition("compared 1 · ")[2]
    excused = "nothing changed · 1 only in OLD · NEW was not asked for all of OLD: -k dtype=fp16"
    assert (done.code, last) == (code, excused if more else "1 coverage lost · 1 only in OLD")


def test_another_fault_behind_the_same_outcome_is_told() -> None:
    one, other = (
        verdict(CASE, I, findings=[Finding(slot="wgrad[0]", outcome=I, why="", diagnosis=named)])
        for named in ("scaled by 0.5", "scaled by 3")
    )
    (change,) = compared(one, other).changes
    assert (change.kind, change.new) == ("outcome", "wgrad INEXACT (scaled by 3)")


def test_the_legend_says_from_where_on_a_change_is_told() -> None:
    assert f"{GROWN * LEAST_LEFT:g} of its bound" in KINDS["margin"]
    assert f"and {LEAST_SECONDS:g} s or more" in KINDS["slower"]


def test_what_differs_between_the_machines_is_told_and_nothing_else() -> None:
    versions = {**H200.versions, "transformer_engine": "2.20.2"}
    there = msgspec.structs.replace(H200, versions=versions, variables={}, device_name="NVIDIA B200")
    new = msgspec.structs.replace(report([verdict(CASE)]), environment=there)
    assert difference(report([verdict(CASE)]), new, {}).environment == {
        "device": ("NVIDIA H200", "NVIDIA B200"),
        "transformer_engine": ("2.17.1", "2.20.2"),
        "NVTE_GROUPED_LINEAR_SINGLE_PARAM": ("1", ""),
    }


def test_the_runs_of_the_seeds_matrix() -> None:
    done = recorded("issue-3234-cublas-13.5", "--format", "json")
    # The matrix leaves the path to the module, which then takes legacy: from 2.19 on a single weight is refused there.
    assert (done.code, counted(done)) == (
        1,
        {
            ("coverage lost", "op_mlp fp32", "PASSED", "REFUSED"): 2,
            ("outcome", "module bf16", "MISSING", "REFUSED"): 2,
            ("outcome", "module fp32", "MISSING", "REFUSED"): 2,
        },
    )


def test_the_runs_of_core_show_what_was_mended() -> None:
    done = recorded("core-cublas-13.5", "--format", "json")
    assert (done.code, counted(done)) == (
        1,
        {
            ("coverage lost", "op fp32", "PASSED", "REFUSED"): 6,
            ("mended", "module bf16", "MISSING", "PASSED"): 6,
            ("mended", "module fp16", "MISSING", "PASSED"): 6,
            ("outcome", "module bf16", "MISSING", "REFUSED"): 6,
            ("outcome", "module fp16", "MISSING", "REFUSED"): 6,
            ("outcome", "module fp32", "MISSING", "REFUSED"): 12,
        },
    )


@pytest.mark.parametrize("form", ("table", "markdown"))
def test_a_person_reads_versions_counts_and_cases(form: str) -> None:
    done = recorded("core-cublas-13.5", "--format", form)
    said = " ".join(done.out.replace("\\", "").replace("|", " ").split())
    assert "transformer_engine 2.17.1 2.20.2" in said
    assert "te module native bf16 single=1 MISSING -> PASSED 6" in said
    assert "compared 108 · 6 coverage lost · 12 mended · 24 outcome" in said
    assert "te:api=op:single_grouped_weight=1:dtype=fp32:m_splits=uneven" in said


def test_json_validates_against_the_schema_of_the_record() -> None:
    told = json.loads(recorded("core-cublas-13.1", "--format", "json").out)
    jsonschema.validate(told, msgspec.json.schema(Difference))
    assert told["compared"] == 108


def test_a_run_compared_with_itself_is_no_change() -> None:
    folder = str(RECORDED / OLD / "core-cublas-13.5")
    done = typed("diff", folder, folder)
    assert (done.code, "compared 108 · nothing changed\n" in done.out) == (0, True)


TO_TORCH = ("--provider-map", "te:op=torch:grouped_mm")


def test_candidates_are_compared_by_every_axis_but_their_names() -> None:
    folders = (str(RECORDED / OLD / "core-cublas-13.1"), str(RECORDED / "torch-cpu"))
    done = typed("diff", *folders, *TO_TORCH, "--format", "json")
    told = json.loads(done.out)
    assert (done.code, told["compared"]) == (0, 36)
    assert {(one["kind"], one["new"]) for one in told["changes"]} == {("coverage gained", "PASSED")}
    first = told["changes"][0]
    assert first["new_case"] == first["case"].replace("te:api=op", "torch:api=grouped_mm")


def test_a_path_of_one_layer_has_no_partner_and_each_is_compared() -> None:
    old = report([verdict(f"te:api=module:path={path}", M) for path in ("legacy", "native")])
    found = difference(old, report([verdict("torch:api=loop")]), {("te", "module"): ("torch", "loop")})
    assert (found.compared, kinds(found), found.only_old, found.only_new) == (2, ["mended", "mended"], [], [])


def test_a_run_of_before_an_axis_has_partners_among_those_of_its_default() -> None:
    before = verdict("te:api=op")
    older = msgspec.structs.replace(before, axes={name: held for name, held in before.axes.items() if name != "bias"})
    new = report([verdict("torch:api=loop"), verdict("torch:api=loop:bias=1")])
    found = difference(report([older]), new, {("te", "op"): ("torch", "loop")})
    assert (found.compared, found.only_new) == (1, ["torch:api=loop:bias=1"])


CORE, TORCH = str(RECORDED / OLD / "core-cublas-13.5"), str(RECORDED / "torch-cpu")
WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no run": ((CORE, "nowhere"), 2, "no run in nowhere: expected report.json or journal.jsonl there"),
    "no format": ((CORE, CORE, "--format", "csv"), 2, "unknown format 'csv': expected table or markdown or json"),
    "nothing in common": ((CORE, TORCH), 5, "found none of its 108 there; runs of one matrix have the same ids"),
    "no map": ((CORE, TORCH, "--provider-map", "te=torch"), 2, "expected OLD=NEW with a provider and an API each"),
    "a map of what is not there": (
        (CORE, TORCH, "--provider-map", "te:op=torch:bmm"),
        2,
        "the new run has no case of torch:bmm; it has those of torch:grouped_mm, torch:loop",
    ),
    "two maps of one layer": (
        (CORE, TORCH, *TO_TORCH, "--provider-map", "te:op=torch:loop"),
        2,
        "te:op is mapped already",
    ),
}


@pytest.mark.parametrize(("arguments", "code", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_compared_is_one_message(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = typed("diff", *arguments)
    assert (done.code, done.out, said in " ".join(done.err.split())) == (code, "", True)


def test_a_report_of_an_older_schema_is_compared_and_one_of_a_newer_is_not(tmp_path: Path) -> None:
    case = Case.parse(CASE)
    bare = {"schema": 0, "case": CASE, "axes": case.axes(), "outcome": "MISSING"}
    asked = {"gradcheck": "0.0.9", "command": [], "started": "", "matrix": "core", "provider": ["te"]}
    older = {
        "schema": 0,
        "run": asked,
        "environment": {},
        "tally": {"asked": 1, "executed": 1, "outcomes": {"MISSING": 1}},
        "verdicts": [bare],
        "seconds": 1.0,
        "exit_code": 1,
    }
    old, new = written(tmp_path / "old", older), written(tmp_path / "new", report([verdict(CASE)]))
    done = typed("diff", old, new)
    assert (done.code, "compared 1 · 1 mended\n" in done.out) == (0, True)
    assert f"gradcheck 0.0.9 {RUN.gradcheck}" in " ".join(done.out.split())
    newer = written(tmp_path / "newer", older | {"schema": 2})
    assert (typed("diff", newer, new).code, "expected schema 1, found 2" in typed("diff", newer, new).err) == (2, True)
    assert typed("diff", new, newer).code == 2


def test_a_run_that_was_cut_off_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    lines = (RECORDED / OLD / "issue-3234-cublas-13.5/journal.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(lines[:6]) + lines[6][:40], "utf-8")
    done = typed("diff", str(RECORDED / OLD / "issue-3234-cublas-13.5"), str(tmp_path), "--format", "json")
    told = json.loads(done.out)
    assert (done.code, told["compared"]) == (1, 12)
    assert {(one["kind"], one["new"]) for one in told["changes"] if one["old"] == "PASSED"} == {
        ("regression", "UNTESTED")
    }
