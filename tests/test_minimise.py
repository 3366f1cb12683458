"""Is the smallest case found, by the same steps each time, without a slide to another fault?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from commands import typed
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reproduce.minimise import FLOORS, Budget, minimise, simpler

LARGE = Case.parse(
    "te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:dtype=fp32:bias=1:m_splits=uneven:num_gemms=8"
    ":tokens_per_expert=64:in_features=256:out_features=512:microbatches=3:grad_output=expanded:seed=7"
)
PLENTY = Budget(1000, 1000.0)


def verdict(case: Case, outcome: Outcome, diagnosis: str = "none", role: str = "wgrad", why: str = "") -> Verdict:
    slot = f"{role}[{case.num_gemms - 1}]" if role != "case" else role
    found = [] if outcome.green else [Finding(slot=slot, outcome=outcome, why=why, diagnosis=diagnosis)]
    return Verdict(case=str(case), axes=case.axes(), outcome=outcome, findings=found)


def search(
    fails: Callable[[Case], bool], case: Case = LARGE, budget: Budget = PLENTY, otherwise: Outcome = Outcome.PASSED
) -> Minimised:
    """Minimise against a rule that says which cases fail."""

    def judged(one: Case) -> Verdict:
        return verdict(one, Outcome.MISSING if fails(one) else otherwise)

    return minimise(case, judged(case), judged, budget, lambda: 0.0, lambda _: None)


def test_what_always_fails_ends_with_every_default_and_the_smallest_shape() -> None:
    found = search(lambda _: True)
    assert found.case == ("te:api=module:num_gemms=1:tokens_per_expert=1:in_features=1:out_features=1:microbatches=1")
    assert (found.role, found.outcome, found.diagnosis, found.stopped) == ("wgrad", Outcome.MISSING, "none", "")


def test_a_floor_is_kept_where_the_case_is_above_it_and_leaves_alone_what_is_below() -> None:
    budget = PLENTY._replace(floor=FLOORS["report"])
    whole = "te:api=module:num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:microbatches=1"
    assert search(lambda _: True, budget=budget).case == whole
    listed = Case.parse("te:api=module:m_splits=9,0,9,2:in_features=3")
    assert search(lambda _: True, listed, budget).case == (
        "te:api=module:m_splits=4,2:in_features=3:out_features=32:microbatches=1"
    )


def test_the_numbers_told_are_those_of_the_smallest_case() -> None:
    def judged(case: Case) -> Verdict:
        return verdict(case, Outcome.INEXACT, f"holds expert {case.num_gemms - 1}")

    found = minimise(LARGE, judged(LARGE), judged, Budget(1000, 1000.0, FLOORS["report"]), lambda: 0.0, lambda _: None)
    assert found.diagnosis == "holds expert 1"


def test_what_the_failure_needs_is_kept() -> None:
    found = search(lambda case: case.single_grouped_weight and case.num_gemms >= 3 and case.in_features >= 16)
    assert Case.parse(found.case) == Case.parse(
        "te:api=module:single_grouped_weight=1:num_gemms=3:tokens_per_expert=1:in_features=16:out_features=1"
        ":microbatches=1"
    )
    assert all(attempt.outcome is Outcome.MISSING for attempt in found.trail if attempt.kept)
    assert any(not attempt.kept for attempt in found.trail)


# A failure that looks like it, and is another: outcome, role, diagnosis, or the words of an exception.
SLIDES = {
    "another outcome": {"outcome": Outcome.INEXACT},
    "another gradient": {"role": "dgrad"},
    "another diagnosis": {"diagnosis": "untouched"},
}


@pytest.mark.parametrize("other", SLIDES.values(), ids=SLIDES)
def test_a_slide_to_another_fault_is_rejected(other: dict[str, object]) -> None:
    def judged(case: Case) -> Verdict:
        own: dict[str, object] = {"outcome": Outcome.MISSING} if case.bias else {"outcome": Outcome.MISSING, **other}
        return verdict(case, **own)  # type: ignore[arg-type]

    found = minimise(LARGE, judged(LARGE), judged, PLENTY, lambda: 0.0, lambda _: None)
    assert Case.parse(found.case).bias
    assert [one.kept for one in found.trail if "bias=1" not in one.case] == [False] * len(
        [one for one in found.trail if "bias=1" not in one.case]
    )


def test_a_failure_beside_another_as_grave_is_still_the_same() -> None:
    def judged(case: Case) -> Verdict:
        wgrad = verdict(case, Outcome.MISSING)
        found = [*verdict(case, Outcome.MISSING, role="dgrad").findings] if not case.bias else []
        return msgspec.structs.replace(wgrad, findings=[*found, *wgrad.findings])

    found = minimise(LARGE, judged(LARGE), judged, PLENTY, lambda: 0.0, lambda _: None)
    assert (found.role, Case.parse(found.case).bias) == ("wgrad", False)


def test_an_exception_with_other_words_is_another_failure_and_other_numbers_are_not() -> None:
    def judged(case: Case) -> Verdict:
        said = f"expected gradients; RuntimeError: {'aligned' if case.bias else 'no bias'} at {case.in_features}"
        return verdict(case, Outcome.RAISED, "RuntimeError", "case", said)

    found = Case.parse(minimise(LARGE, judged(LARGE), judged, PLENTY, lambda: 0.0, lambda _: None).case)
    assert (found.bias, found.in_features) == (True, 1)


def test_numbers_in_a_diagnosis_may_change() -> None:
    def judged(case: Case) -> Verdict:
        return verdict(case, Outcome.INEXACT, f"rows shifted by {case.num_gemms}")

    assert Case.parse(minimise(LARGE, judged(LARGE), judged, PLENTY, lambda: 0.0, lambda _: None).case).num_gemms == 1


def test_another_factor_is_another_fault() -> None:
    def judged(case: Case) -> Verdict:
        return verdict(case, Outcome.INEXACT, f"scaled by {'0.5' if case.bias and case.in_features >= 8 else '3'}")

    found = minimise(LARGE, judged(LARGE), judged, PLENTY, lambda: 0.0, lambda _: None)
    smallest = Case.parse(found.case)
    assert (smallest.bias, smallest.in_features, found.diagnosis) == (True, 8, "scaled by 0.5")


def test_a_green_case_has_nothing_to_keep() -> None:
    with pytest.raises(ValueError, match="there is no failure to keep"):
        search(lambda _: False)


@pytest.mark.parametrize(("budget", "runs"), ((Budget(3, 1000.0), 3), (Budget(1000, 0.0), 0)))
def test_a_budget_is_kept_and_told(budget: Budget, runs: int) -> None:
    found = search(lambda _: True, budget=budget)
    assert len(found.trail) == runs
    assert "budget" in found.stopped


@pytest.mark.parametrize(("outcome", "each", "runs"), ((Outcome.TIMED_OUT, 4.0, 0), (Outcome.MISSING, 0.125, 3)))
def test_a_run_that_would_outlast_the_budget_is_not_begun(outcome: Outcome, each: float, runs: int) -> None:
    seconds = [4.5]  # what the first run took, with the start of its worker; another is started for each that is lost

    def judged(case: Case) -> Verdict:
        seconds[0] += each
        return verdict(case, outcome)

    first = msgspec.structs.replace(verdict(LARGE, outcome), seconds=0.125)
    found = minimise(LARGE, first, judged, Budget(1000, 5.0), lambda: seconds[0], lambda _: None)
    assert (len(found.trail), found.seconds <= 5.0) == (runs, True)
    assert "budget" in found.stopped


axes = st.fixed_dictionaries(
    {
        "single_grouped_weight": st.booleans(),
        "fuse_wgrad_accumulation": st.booleans(),
        "bias": st.booleans(),
        "dtype": st.sampled_from(("bf16", "fp16", "fp32")),
        "m_splits": st.sampled_from(("balanced", "uneven", "hot", "5,0,9", "64")),
        "in_features": st.integers(1, 300),
        "out_features": st.integers(1, 300),
        "microbatches": st.integers(1, 4),
    }
)


@given(axes, st.integers(1, 40), st.booleans())
def test_a_search_ends_in_a_case_that_fails_alike_and_has_no_simpler_neighbour_that_does(
    axes: dict[str, object],
    least: int,
    packed: bool,  # noqa: FBT001
) -> None:
    case = Case.of({"provider": "torch", "api": "loop", **axes})
    case = msgspec.structs.replace(case, single_grouped_weight=packed, in_features=max(case.in_features, least))

    def fails(one: Case) -> bool:
        return one.single_grouped_weight is packed and one.in_features >= least

    first, second = search(fails, case), search(fails, case)
    assert first == second
    smallest = Case.parse(first.case)
    assert fails(smallest)
    assert [one for one in simpler(smallest) if fails(one.case)] == []


def test_the_command_prints_the_trail_and_the_smallest_case_last(tmp_path: Path) -> None:
    trail = tmp_path / "trail.json"
    case = "faults:api=wgrad_missing:fuse_wgrad_accumulation=1:bias=1:m_splits=uneven"
    began = time.monotonic()
    done = typed("minimise", case, "--device", "cpu", "--output", str(trail))
    seconds = time.monotonic() - began
    assert (done.code, done.err) == (0, f"gradcheck: starting a worker, and running {case}\n")
    *told, last = done.out.splitlines()
    # All that was waited for, the start of the worker included.
    assert seconds / 2 < json.loads(trail.read_text("utf-8"))["seconds"] < seconds
    assert Case.parse(last).axes() | {"api": ""} == Case.parse(json.loads(trail.read_text("utf-8"))["case"]).axes() | {
        "api": ""
    }
    assert Case.parse(last).in_features == 1
    assert sum(line.startswith(("kept", "rejected")) for line in told) == len(
        json.loads(trail.read_text("utf-8"))["trail"]
    )


def test_a_case_that_crashes_its_worker_is_minimised_too() -> None:
    done = typed("minimise", "faults:api=abort:m_splits=uneven", "--device", "cpu", "--max-runs", "4")
    assert done.code == 0
    assert "case CRASHED (signal 6 (SIGABRT))" in done.out


@pytest.mark.parametrize("command", ("minimise", "script"))
@pytest.mark.parametrize(
    ("case", "said"),
    (
        ("torch:api=loop", "expected a case that fails on this machine; torch:api=loop is PASSED"),
        ("torch:api=loop:nope=1", "unknown axis 'nope'"),
        ("te:api=module", "The case itself must be run"),
    ),
)
def test_a_case_that_cannot_be_reproduced_is_a_usage_error(command: str, case: str, said: str) -> None:
    done = typed(command, case, "--device", "cpu")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
