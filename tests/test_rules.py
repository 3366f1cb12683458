"""Is the rule behind a run's failures found, whatever it is, and are its counts true?"""

from __future__ import annotations

import io
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import ROOT, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import finding, report, seed, verdict
from rich.console import Console

from gradcheck_cli.expression import compile_expression
from gradcheck_cli.judge import conjunction
from gradcheck_cli.judge.rules import explain, rules
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.rule import Rule
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reporters.rules import condition, sentence, show, title

RECORDED = ROOT / "reports"
SEED = "wgrad MISSING iff api=module and single_grouped_weight=1"
DOUBLED = finding(Outcome.INEXACT)
SWAPPED = msgspec.structs.replace(DOUBLED, diagnosis="holds expert 1")

# Axes of a random matrix -> their values.
VALUES: dict[str, tuple[Any, ...]] = {
    "path": ("auto", "legacy", "native"),
    "single_grouped_weight": (0, 1),
    "fuse_wgrad_accumulation": (0, 1),
    "dtype": ("bf16", "fp16", "fp32"),
    "bias": (0, 1),
    "m_splits": ("balanced", "uneven", "hot", "64,0,128,1"),
}
MATRIX = [
    Case.of({"provider": "te", "api": "module", **dict(zip(VALUES, values, strict=True))})
    for values in product(*VALUES.values())
]
Planted = dict[str, list[Any]]


@st.composite
def planted(draw: st.DrawFn, most: int = 3) -> Planted:
    """A conjunction over some axes that leaves out a value of each."""
    axes = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=most, unique=True))
    return {
        axis: draw(st.lists(st.sampled_from(VALUES[axis]), min_size=1, max_size=len(VALUES[axis]) - 1, unique=True))
        for axis in axes
    }


matrices = st.lists(st.sampled_from(MATRIX), min_size=30, max_size=150, unique=True)


def meets(case: Case, rule: Planted) -> bool:
    return all(case.axes()[axis] in values for axis, values in rule.items())


def judged(cases: list[Case], *faults: tuple[Planted, Finding]) -> list[Verdict]:
    """Each case with the findings of the faults that it meets."""
    told = []
    for case in cases:
        findings = [found for rule, found in faults if meets(case, rule)]
        told.append(verdict(case, findings[0].outcome if findings else Outcome.PASSED, findings=findings))
    return told


def length(rule: Planted) -> int:
    return sum(min(len(values), len(VALUES[axis]) - len(values)) for axis, values in rule.items())


def selected(rule: Rule, verdicts: list[Verdict]) -> set[str]:
    """The cases that `-k` selects with the condition that is printed."""
    wanted = compile_expression(condition(rule.terms))
    return {one.case for one in verdicts if wanted(Case.parse(one.case))}


def failed(verdicts: list[Verdict], diagnosis: str = "doubled") -> set[str]:
    return {one.case for one in verdicts if any(found.diagnosis == diagnosis for found in one.findings)}


@given(cases=matrices, rule=planted())
@settings(max_examples=150, deadline=None)
def test_a_planted_conjunction_is_found_as_short_as_it_was_planted(cases: list[Case], rule: Planted) -> None:
    verdicts = judged(cases, (rule, DOUBLED))
    lost = failed(verdicts)
    failing = [Case.parse(case).axes() for case in lost]
    # A value that no failing case has is named by no rule, though its name might make one shorter.
    had = all({axes[axis] for axes in failing} == set(values) for axis, values in rule.items())
    if had and length(rule) < len(lost) < len(cases):
        (found,) = rules(verdicts)
        assert found.exact
        assert selected(found, verdicts) == lost
        assert conjunction.length(found.terms) <= length(rule)


@given(cases=matrices, one=planted(2), other=planted(2))
@settings(max_examples=100, deadline=None)
def test_every_rule_is_true_and_with_the_exceptions_they_are_all_of_it(
    cases: list[Case], one: Planted, other: Planted
) -> None:
    verdicts = judged(cases, (one, DOUBLED), (other, DOUBLED))
    lost, covered = failed(verdicts), set[str]()
    for rule in rules(verdicts):
        inside = selected(rule, verdicts) if rule.terms else lost if rule.found else set[str]()
        naive = (len(inside & lost), len(inside), len(lost - inside), len(verdicts) - len(inside))
        assert (rule.failing, rule.of, rule.elsewhere, rule.elsewhere_of) == naive
        assert inside <= lost
        covered |= inside | set(rule.exceptions)
    assert covered == lost


@given(cases=matrices, rule=planted())
@settings(max_examples=100, deadline=None)
def test_the_nearest_case_passed_and_is_one_axis_away_from_one_that_failed(cases: list[Case], rule: Planted) -> None:
    verdicts = judged(cases, (rule, DOUBLED))
    outcomes = {one.case: one.outcome for one in verdicts}
    for near in [found.nearest for found in rules(verdicts) if found.nearest]:
        kept, lost = Case.parse(near.case).axes(), Case.parse(near.beside).axes()
        assert (outcomes[near.case], outcomes[near.beside]) == (Outcome.PASSED, Outcome.INEXACT)
        assert {axis: (lost[axis], kept[axis]) for axis in kept if kept[axis] != lost[axis]} == {
            near.axis: (near.failing, near.passing)
        }


@given(cases=matrices, rule=planted())
@settings(max_examples=50, deadline=None)
def test_the_rules_of_a_run_are_the_same_each_time(cases: list[Case], rule: Planted) -> None:
    verdicts = judged(cases, (rule, DOUBLED))
    read_again = [msgspec.json.decode(to_json(one), type=Verdict) for one in verdicts]
    assert rules(verdicts) == rules(read_again)


def test_two_faults_have_two_rules_also_in_one_case() -> None:
    verdicts = judged(MATRIX, ({"dtype": ["fp16"]}, DOUBLED), ({"bias": [1], "path": ["native"]}, SWAPPED))
    assert sorted(map(title, rules(verdicts))) == [
        "wgrad INEXACT iff dtype=fp16",
        "wgrad INEXACT iff path=native and bias=1",
    ]


def test_diagnoses_that_differ_in_a_number_are_one_fault() -> None:
    others = msgspec.structs.replace(SWAPPED, diagnosis="holds expert 3")
    fused = {"fuse_wgrad_accumulation": [1]}
    verdicts = judged(MATRIX, (fused | {"bias": [0]}, SWAPPED), (fused | {"bias": [1]}, others))
    assert [(title(rule), rule.diagnosis) for rule in rules(verdicts)] == [
        ("wgrad INEXACT iff fuse_wgrad_accumulation=1", "holds expert #")
    ]


def raised(message: str) -> Finding:
    why = f"expected gradients; the candidate raised RuntimeError in backward of microbatch 0: {message}"
    return Finding(slot="case", outcome=Outcome.RAISED, why=why, diagnosis="RuntimeError")


def other(outcome: Outcome, diagnosis: str) -> Finding:
    slot = "case" if outcome is Outcome.CRASHED else "wgrad[0]"
    return Finding(slot=slot, outcome=outcome, why="", diagnosis=diagnosis)


TWO_FAULTS = {
    "wrong values": (DOUBLED, SWAPPED),
    "factors": (other(Outcome.INEXACT, "scaled by 0.5"), other(Outcome.INEXACT, "scaled by 3")),
    "exceptions": (raised("grad strides must be nonzero"), raised("CUDA out of memory")),
    "exit codes": (other(Outcome.CRASHED, "exit code 1"), other(Outcome.CRASHED, "exit code 77")),
    "breaches": (other(Outcome.PROTOCOL, "flag not set"), other(Outcome.PROTOCOL, "dummy")),
}


@pytest.mark.parametrize(("one", "two"), TWO_FAULTS.values(), ids=TWO_FAULTS)
def test_two_faults_stay_two_even_if_one_rule_would_cover_them(one: Finding, two: Finding) -> None:
    found = rules(judged(MATRIX, ({"dtype": ["bf16"]}, one), ({"dtype": ["fp16"]}, two)))
    assert sorted(condition(rule.terms) for rule in found) == ["dtype=bf16", "dtype=fp16"]
    assert len({(rule.diagnosis, rule.message) for rule in found}) == 2


def test_an_exception_is_told_with_its_words() -> None:
    sizes = (({"dtype": [dtype]}, raised(f"got {size} rows")) for dtype, size in (("bf16", 64), ("fp16", 128)))
    (rule,) = rules(judged(MATRIX, *sizes))
    assert (condition(rule.terms), rule.message) == ("dtype!=fp32", "backward: got # rows")


def test_four_terms_are_found_as_well() -> None:
    rule: Planted = {"path": ["native"], "single_grouped_weight": [1], "fuse_wgrad_accumulation": [1], "bias": [1]}
    (found,) = rules(judged(MATRIX, (rule, DOUBLED)))
    assert (found.exact, condition(found.terms)) == (
        True,
        "path=native and single_grouped_weight=1 and fuse_wgrad_accumulation=1 and bias=1",
    )


def test_where_all_but_one_value_fail_the_one_is_named() -> None:
    (found,) = rules(judged(MATRIX, ({"m_splits": ["balanced", "uneven", "hot"]}, DOUBLED)))
    assert condition(found.terms) == 'm_splits!="64,0,128,1"'


def test_a_rule_as_long_as_the_list_of_its_cases_is_none() -> None:
    lost = MATRIX[100]
    verdicts = [verdict(case, Outcome.INEXACT if case == lost else Outcome.PASSED) for case in MATRIX]
    (rule,) = rules(verdicts)
    assert (rule.found, rule.exceptions) == (False, [str(lost)])
    assert sentence(rule) == f"wgrad INEXACT: no rule was found for 1 case; 1 of {len(MATRIX)} have this fault"


def test_a_fault_in_every_case_needs_no_terms() -> None:
    (rule,) = rules(judged(MATRIX[:9], ({}, DOUBLED)))
    assert sentence(rule) == "wgrad INEXACT in every case: 9 of 9"


def test_an_axis_that_is_the_same_everywhere_is_in_no_rule() -> None:
    fp16 = [case for case in MATRIX if case.dtype == "fp16"]
    (rule,) = rules(judged(fp16, ({"dtype": ["fp16"], "bias": [1]}, DOUBLED)))
    assert condition(rule.terms) == "bias=1"


def test_a_case_that_crashed_says_nothing_of_its_gradients_and_one_without_bias_nothing_of_bgrad() -> None:
    bgrad = msgspec.structs.replace(DOUBLED, slot="bgrad[0]")
    crashed = verdict(MATRIX[0], Outcome.CRASHED)
    fused: Planted = {"fuse_wgrad_accumulation": [1], "bias": [1]}
    counted = [case for case in MATRIX[1:] if case.bias]
    *_, rule = rules([crashed, *judged(MATRIX[1:], (fused, bgrad))])
    assert (condition(rule.terms), rule.of + rule.elsewhere_of) == ("fuse_wgrad_accumulation=1", len(counted))


def test_a_case_that_never_ran_is_counted_and_in_no_rule() -> None:
    never = Finding(slot="case", outcome=Outcome.UNTESTED, why="expected the case to run; the run ended before it")
    verdicts = [*judged(MATRIX[:20]), verdict(MATRIX[20], Outcome.UNTESTED, findings=[never], roles={})]
    told = explain(report(verdicts))
    assert (told.failing, told.never_run, told.rules) == (1, 1, [])


SEEDS = {
    "versions-h200/issue-3234-cublas-13.5/2.14.1": (4, 4, 0, 8),
    "te-2.17.1-h200/issue-3234-cublas-13.1": (4, 4, 0, 6),
    "te-2.17.1-h200/issue-3234-cublas-13.5": (4, 4, 0, 8),
    "te-2.17.1-h200/core-cublas-13.1": (24, 24, 0, 30),
    "te-2.17.1-h200/core-cublas-13.5": (36, 36, 0, 66),
}


@pytest.mark.parametrize(("folder", "counts"), SEEDS.items(), ids=SEEDS)
def test_the_recorded_runs_give_the_rule_of_the_seed(folder: str, counts: tuple[int, ...]) -> None:
    (rule,) = rules(read(RECORDED / folder).verdicts)
    assert title(rule) == SEED
    assert (rule.failing, rule.of, rule.elsewhere, rule.elsewhere_of) == counts
    assert rule.nearest
    assert (rule.nearest.axis, rule.nearest.passing) == ("single_grouped_weight", 0)


def test_explain_says_rule_example_and_nearest_case() -> None:
    done = typed("explain", str(RECORDED / "te-2.17.1-h200/core-cublas-13.5"))
    assert (done.code, done.err) == (0, "")
    assert f"{SEED}; 36 of 36 cases with it, 0 of 66 without" in " ".join(done.out.split())
    assert "example: gradcheck run --case 'te:api=module:path=legacy:single_grouped_weight=1'\n" in done.out
    assert "nearest that passed: te:api=module:path=legacy\n  differs in: single_grouped_weight=0 in" in done.out


def test_explain_says_what_a_run_held_constant_and_tells_one_cause_once() -> None:
    for form in ("text", "markdown"):
        done = typed("explain", str(RECORDED / "te-2.17.1-h200/fp16-bias-cublas-13.5"), "--format", form)
        assert "in this run always: api=module, path=legacy, dtype=fp16, bias=1; the rules speak of" in done.out
        assert (done.out.count("INEXACT iff"), done.out.count("INACCURATE iff")) == (1, 1)  # wgrad, bgrad


def test_a_wrong_value_on_random_data_alone_is_a_fault_of_its_own() -> None:
    inaccurate = msgspec.structs.replace(DOUBLED, outcome=Outcome.INACCURATE)
    verdicts = judged(MATRIX, ({"dtype": ["fp16"]}, DOUBLED), ({"dtype": ["fp16", "bf16"]}, inaccurate))
    assert list(map(title, rules(verdicts))) == [
        "wgrad INEXACT iff dtype=fp16",
        "wgrad INACCURATE iff dtype!=fp32",
    ]


def test_another_fault_is_no_neighbour_of_one() -> None:
    cases = [Case.parse(f"faults:api={api}:bias={bias}") for api in ("segfault", "wgrad_nan_in_empty") for bias in "01"]
    verdicts = [verdict(case, Outcome.CRASHED if case.api == "segfault" else Outcome.PASSED) for case in cases]
    assert [rule.nearest for rule in rules(verdicts)] == [None]


def test_of_many_rules_the_gravest_are_told_and_the_others_counted() -> None:
    named = [msgspec.structs.replace(DOUBLED, diagnosis=f"kind {letter}") for letter in "abcdefghijklmnopqrstuvwxyz"]
    told = explain(report([verdict(MATRIX[0], Outcome.INEXACT, findings=named)]))
    for form in ("text", "markdown"):
        out = io.StringIO()
        show(told, form, Console(file=out, width=100))
        assert (out.getvalue().count("diagnosis: "), len(told.rules)) == (20, 26)
        assert "... and 6 more, all with --format json: 6 wgrad INEXACT" in out.getvalue()


def test_a_run_without_failures_has_nothing_to_explain() -> None:
    done = typed("explain", str(RECORDED / "te-2.20.2-h200/core-cublas-13.5"))
    assert (done.code, "executed 72 of 108 asked; every one is green" in done.out) == (0, True)


def test_markdown_marks_the_role_and_escapes_the_rest() -> None:
    done = typed("explain", str(RECORDED / "te-2.17.1-h200/issue-3234-cublas-13.5"), "--format", "markdown")
    assert "**`wgrad` MISSING iff api=module and single\\_grouped\\_weight=1; 4 of 4 cases with it" in done.out


def test_json_is_the_record_itself() -> None:
    folder = RECORDED / "te-2.17.1-h200/fp16-bias-cublas-13.5"
    told = json.loads(typed("explain", str(folder), "--format", "json").out)
    assert told == json.loads(to_json(explain(read(folder))))


def test_what_a_run_that_was_cut_off_had_concluded_is_explained(tmp_path: Path) -> None:
    lines = (RECORDED / "te-2.17.1-h200/core-cublas-13.5/journal.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(lines[:120]) + lines[120][:50], "utf-8")
    done = typed("explain", str(tmp_path))
    assert (done.code, "of these were never seen to run: no rule speaks of them" in done.out) == (0, True)
    assert "wgrad MISSING iff" in done.out


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no run": (("explain", "reports"), "no run in reports: expected report.json or journal.jsonl there"),
    "no format": (("explain", "reports", "--format", "xml"), "unknown format 'xml': expected text or markdown or json"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_explained_is_one_message(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = typed(*arguments)
    assert (done.code, done.out, said in done.err) == (2, "", True)


def test_a_report_of_an_older_schema_is_explained_and_one_of_a_newer_is_not(tmp_path: Path) -> None:
    older = msgspec.to_builtins(seed())
    for name in ("effective", "channels", "margins", "notes", "mutants"):
        for one in older["verdicts"]:
            del one[name]
    for one in older["verdicts"]:
        del one["axes"]["grad_output"], one["axes"]["seed"]
        one["schema"] = 0
    (tmp_path / "report.json").write_text(json.dumps(older | {"schema": 0}), "utf-8")
    assert SEED in typed("explain", str(tmp_path)).out.replace("\n", " ")
    (tmp_path / "report.json").write_text(json.dumps(older | {"schema": 2}), "utf-8")
    done = typed("explain", str(tmp_path))
    assert (done.code, "expected schema 1, found 2; " in done.err) == (2, True)


def test_a_whole_matrix_is_explained_in_a_moment() -> None:
    cases = [msgspec.structs.replace(case, seed=number) for number, case in enumerate(MATRIX * 6)]
    verdicts = judged(cases, ({"dtype": ["fp16"], "bias": [1]}, DOUBLED), ({"path": ["native"]}, DOUBLED))
    found = rules(verdicts)
    assert {condition(rule.terms) for rule in found} == {"path=native", "dtype=fp16 and bias=1"}


def test_nothing_is_written_into_the_runs_folder(tmp_path: Path) -> None:
    copy = shutil.copytree(RECORDED / "te-2.17.1-h200/issue-3234-cublas-13.5", tmp_path / "run")
    before = sorted(copy.iterdir())
    typed("explain", str(copy))
    assert sorted(copy.iterdir()) == before
