"""Which findings does an entry cover, and where? On verdicts written by hand, as a judge would write them."""

from __future__ import annotations

from typing import Any

import pytest
import report_samples as samples
from known_files import TODAY, entry

from gradcheck_cli import known_file
from gradcheck_cli.judge.known import Known, applies, whole
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.known import KnownFailure, Placed
from gradcheck_cli.records.report import exit_code
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict

CASE = Case.parse("te:api=module:bias=1")
CONTAINER = Environment(
    versions={"torch": "2.13.0a0+8145d630e8.nv26.6", "transformer_engine": "2.17.0+2e559f06", "cublaslt": "13.5.1"},
    compute_capability=(9, 0),
)


def known(**keys: str) -> KnownFailure:
    said = {"expression": '"api=module"', "outcome": '"MISSING"', **keys}
    (only,) = known_file.parse(entry(said), "mine.toml")
    return only


def finding(outcome: Outcome, slot: str, diagnosis: str = "none", *experts: int) -> Finding:
    why = "expected a gradient, found none"
    return Finding(slot=slot, outcome=outcome, why=why, diagnosis=diagnosis, experts=list(experts))


def raised(message: str, during: str = "backward of microbatch 1") -> Finding:
    why = f"expected gradients; the candidate raised RuntimeError in {during}: {message}"
    return Finding(slot="case", outcome=Outcome.RAISED, why=why, diagnosis="RuntimeError")


def placed(*findings: Finding, environment: Environment = samples.H200) -> Placed:
    outcome = max((one.outcome for one in findings), key=lambda one: one.gravity, default=Outcome.PASSED)
    verdict = Verdict(case=str(CASE), axes=CASE.axes(), outcome=outcome, findings=list(findings))
    return Placed(case=CASE, verdict=verdict, environment=environment)


WGRAD = known(role='"wgrad"', diagnosis='"none"', link='"w"')
BGRAD = known(role='"bgrad"', outcome='"INACCURATE"', diagnosis='"none"', link='"b"')
WRONG = known(role='"wgrad"', outcome='"INEXACT"', diagnosis='"holds expert #"', link='"x"')
HALF = known(role='"wgrad"', outcome='"INEXACT"', diagnosis='"scaled by 0.5"', link='"h"')
UNNAMED = known(role='"wgrad"', outcome='"INEXACT"', link='"u"')
STRIDES = known(
    outcome='"RAISED"', diagnosis='"RuntimeError"', message='"strides of [64, 128] must be nonzero"', link='"r"'
)
SILENT = known(outcome='"RAISED"', diagnosis='"RuntimeError"', link='"s"')
MISSED = finding(Outcome.MISSING, "wgrad[1]")
COVERED: dict[str, tuple[tuple[Finding, ...], list[KnownFailure], str]] = {
    "nothing to know": ((), [WGRAD], ""),
    "its failure": ((MISSED,), [WGRAD], "w"),
    "a refusal beside it": ((MISSED, finding(Outcome.REFUSED, "case")), [WGRAD], "w"),
    "a milder one of the same gradient": ((MISSED, finding(Outcome.INEXACT, "wgrad[0]", "doubled")), [WGRAD], ""),
    "memory written beside it": ((MISSED, finding(Outcome.UNEXPECTED, "wgrad[1]", "main_grad written")), [WGRAD], ""),
    "another diagnosis": ((finding(Outcome.MISSING, "wgrad[1]", "untouched"),), [WGRAD], ""),
    "another expert's content": ((finding(Outcome.INEXACT, "wgrad[0]", "holds expert 2"),), [WRONG], "x"),
    "its factor": ((finding(Outcome.INEXACT, "wgrad[0]", "scaled by 0.5"),), [HALF], "h"),
    "another factor": ((finding(Outcome.INEXACT, "wgrad[0]", "scaled by 3"),), [HALF], ""),
    "a name where none is known": ((finding(Outcome.INEXACT, "wgrad[0]", "doubled"),), [UNNAMED], ""),
    "no name, as is known": ((finding(Outcome.INEXACT, "wgrad[0]", ""),), [UNNAMED], "u"),
    "the same on random data": (
        (
            finding(Outcome.INEXACT, "wgrad[0]", "scaled by 0.5", 0, 1),
            finding(Outcome.INACCURATE, "wgrad[0]", "scaled by 0.5", 1),
        ),
        [HALF],
        "h",
    ),
    "random data of another expert": (
        (
            finding(Outcome.INEXACT, "wgrad[0]", "scaled by 0.5", 0),
            finding(Outcome.INACCURATE, "wgrad[1]", "scaled by 0.5", 1),
        ),
        [HALF],
        "",
    ),
    "what an exception says": ((raised("grad strides of [7, 0] must be nonzero"),), [STRIDES], "r"),
    "another exception of its type": ((raised("expert index 7 out of range"),), [STRIDES], ""),
    "words where none are known": ((raised("expert index 7 out of range"),), [SILENT], ""),
    "an exception without words": ((raised(""),), [SILENT], "s"),
    "a graver finding on the same gradient": ((MISSED, finding(Outcome.RAISED, "wgrad[0]")), [WGRAD], ""),
    "another failure beside it": ((MISSED, finding(Outcome.INACCURATE, "bgrad[0]")), [WGRAD], ""),
    "each of two known": ((MISSED, finding(Outcome.INACCURATE, "bgrad[0]")), [WGRAD, BGRAD], "w; b"),
    "the same failure of another gradient": ((MISSED, finding(Outcome.MISSING, "dgrad[0]")), [WGRAD], ""),
    "no role, which is the whole case": ((MISSED,), [known(diagnosis='"none"', link='"a"')], ""),
    "another layer": ((MISSED,), [known(expression='"api=op"', role='"wgrad"', diagnosis='"none"')], ""),
}


@pytest.mark.parametrize(("findings", "entries", "links"), COVERED.values(), ids=COVERED)
def test_a_case_is_known_where_each_of_its_failures_is(
    findings: tuple[Finding, ...], entries: list[KnownFailure], links: str
) -> None:
    marked = Known(entries).marked(placed(*findings))
    assert (marked.known, marked.outcome) == (links, placed(*findings).verdict.outcome)


def test_a_new_failure_beside_a_known_one_is_told_and_never_green() -> None:
    seen = placed(MISSED, finding(Outcome.INACCURATE, "bgrad[0]"))
    judge = Known([WGRAD])
    complaints = judge.complaints([seen], whole=True, today=TODAY)
    code = exit_code([judge.marked(seen)], 0.5, interrupted=False, harness_failed=False, complaints=complaints)
    assert ([one.kind for one in complaints], code) == (["different"], 4)
    assert "INACCURATE bgrad[0]" in complaints[0].why


def test_what_was_not_known_before_is_not_known_by_an_old_mark() -> None:
    marked = Known([WGRAD]).marked(placed(MISSED))
    assert Known([]).marked(Placed(case=CASE, verdict=marked, environment=samples.H200)).known == ""


APPLIES: dict[str, tuple[dict[str, str], bool]] = {
    "anywhere": ({}, True),
    "a local version": ({"versions": '{ transformer-engine = "==2.17.0" }'}, True),
    "a range": ({"versions": '{ transformer-engine = ">=2.17,<2.18" }'}, True),
    "past a range": ({"versions": '{ transformer-engine = "<2.17" }'}, False),
    "a pre-release comes before its release": ({"versions": '{ torch = ">=2.13" }'}, False),
    "a pre-release counts": ({"versions": '{ torch = ">=2.12" }'}, True),
    "cuBLAS": ({"versions": '{ cublas = ">=13.4" }'}, True),
    "all or nothing": ({"versions": '{ cublas = ">=13.4", torch = "<2" }'}, False),
    "what is not there": ({"versions": '{ driver = ">=1" }'}, False),
    "its architecture": ({"architecture": '["sm100", "sm90"]'}, True),
    "another architecture": ({"architecture": '["sm100"]'}, False),
    "no GPU": ({"architecture": '["cpu"]'}, False),
}


@pytest.mark.parametrize(("where", "expected"), APPLIES.values(), ids=APPLIES)
def test_an_entry_applies_where_its_versions_and_architecture_are(where: dict[str, str], expected: bool) -> None:  # noqa: FBT001
    assert applies(known(**where), CONTAINER) is expected


def test_a_version_that_cannot_be_read_is_in_no_range() -> None:
    strange = Environment(versions={"torch": "main@abc"})
    assert not applies(known(versions='{ torch = "!=1" }'), strange)


def test_a_refused_case_says_nothing_and_is_a_case_all_the_same() -> None:
    seen = placed(finding(Outcome.REFUSED, "case"))
    assert Known([WGRAD]).complaints([seen], whole=True, today=TODAY) == []


PARTS: dict[str, tuple[dict[str, Any], bool]] = {
    "a matrix": ({}, True),
    "an expression": ({"command": ["gradcheck", "run", "-k", "bias"]}, False),
    "a shard": ({"command": ["gradcheck", "run", "--shard=1/2"]}, False),
    "what failed before": ({"command": ["gradcheck", "run", "--last-failed", "reports/x"]}, False),
    "a variable": ({"command": ["gradcheck", "run"], "options": {"GRADCHECK_K": "bias"}}, False),
    "named cases": ({"command": ["gradcheck", "run"], "matrix": ""}, False),
}


@pytest.mark.parametrize(("asked", "expected"), PARTS.values(), ids=PARTS)
def test_a_run_is_whole_where_nothing_narrowed_it(asked: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    run = samples.report([], **{"command": ["gradcheck", "run", "--matrix", "core", "--known", "known"], **asked}).run
    assert whole(run, [samples.verdict("te:api=op")]) is expected


def test_a_run_that_ended_early_is_not_whole() -> None:
    run = samples.report([], command=["gradcheck", "run"]).run
    assert not whole(run, [samples.verdict("te:api=op"), samples.verdict("te:api=module", Outcome.UNTESTED)])
