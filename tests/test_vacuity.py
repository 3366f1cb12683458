"""Could a comparison that passed have failed? What is not compared, mostly zero or all alike proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hand_written import altered, channel, deviation, observation
from in_process import engine, verdict

from gradcheck_cli import pipeline
from gradcheck_cli.judge.accuracy import accuracy
from gradcheck_cli.judge.bounds import NONZERO_SHARE
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import Expected, expected
from gradcheck_cli.judge.invisible import SAME_EVERYWHERE
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import FILLS, ChannelSeen, Fill, Observation, Role, SlotSeen
from gradcheck_cli.records.verdict import Outcome, Verdict

UNFUSED = Case.parse("torch:api=loop:bias=1:m_splits=5,0,0,9,7")
FUSED = Case.parse("torch:api=loop:bias=1:m_splits=5,0,0,9,7:fuse_wgrad_accumulation=1")
UNIFORM = Case.parse("torch:api=loop:bias=1:m_splits=5,0,0,9,7:grad_output=expanded")
# Elements of expert 3 alone in microbatch 0, K=64 and N=96.
ELEMENTS = {"fprop": 9 * 96, "dgrad": 9 * 64, "wgrad": 96 * 64, "bgrad": 96}
ROLES: tuple[Role, ...] = ("fprop", "dgrad", "wgrad", "bgrad")
# What makes a comparison of expert 3 unable to fail.
BLIND: dict[str, dict[str, Any]] = {"mostly zero": {"nonzero_expected": 1}, "uniform": {"uniform": True}}


def changed(case: Case, role: Role, fills: tuple[Fill, ...], **fields: Any) -> Verdict:
    """The verdict where one role's slots of expert 3 are altered in some channels."""
    own = "main_grad" if case.fuse_wgrad_accumulation else "grad"

    def alter(slot: SlotSeen) -> SlotSeen:
        asked = (slot.role, slot.expert) == (role, 3) and (role != "wgrad" or slot.buffer == own)
        return altered(slot, **fields) if asked else slot

    channels = [channel(case, fill, alter if fill in fills else lambda slot: slot) for fill in FILLS]
    return conclude(case, Observation(case=str(case), ending="finished", channels=channels), Environment())


def wanted(role: Role, expert: int = 3) -> Expected:
    return next(one for one in expected(UNFUSED) if (one.role, one.expert) == (role, expert))


@pytest.mark.parametrize(("role", "elements"), tuple(ELEMENTS.items()))
def test_the_contract_counts_the_elements_of_each_gradient(role: Role, elements: int) -> None:
    assert wanted(role).elements == elements


@pytest.mark.parametrize(("role", "elements"), (("fprop", 0), ("dgrad", 0), ("wgrad", 96 * 64), ("bgrad", 96)))
def test_an_expert_without_tokens_has_no_rows_but_all_of_its_parameters(role: Role, elements: int) -> None:
    assert (wanted(role, 2).elements, wanted(role, 2).empty) == (elements, True)


@pytest.mark.parametrize("case", (UNFUSED, FUSED), ids=("unfused", "fused"))
@pytest.mark.parametrize("fill", FILLS)
def test_one_element_that_nobody_compared_leaves_its_slot_untested(fill: Fill, case: Case) -> None:
    content = "prefill+sum" if case is FUSED else "sum"
    found = changed(case, "wgrad", (fill,), contents={content: deviation(fill, compared=96 * 64 - 1)})
    (only,) = found.findings
    assert (only.outcome, only.experts) == (Outcome.UNTESTED, [3])
    assert only.why.startswith("expected a comparison of 6144 elements; found 6143 compared")


def test_zeros_that_nobody_compared_leave_an_expert_without_tokens_untested() -> None:
    slot = SlotSeen(role="bgrad", expert=2, buffer="grad", present=True, contents={"sum": deviation("exact")})
    short = altered(slot, contents={"sum": deviation("exact", compared=95)})
    outcomes = [accuracy(UNFUSED, wanted("bgrad", 2), one, ChannelSeen(fill="exact")).outcome for one in (slot, short)]
    assert outcomes == [Outcome.PASSED, Outcome.UNTESTED]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("fields", BLIND.values(), ids=BLIND)
def test_a_comparison_that_could_not_have_failed_in_any_channel_is_vacuous(fields: dict[str, Any], role: Role) -> None:
    found = changed(UNFUSED, role, FILLS, **fields)
    assert [(f.slot, f.outcome) for f in found.findings] == [(f"{role}[3]", Outcome.VACUOUS)]
    assert {one for name, one in found.roles.items() if name != role} == {Outcome.PASSED}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("fields", BLIND.values(), ids=BLIND)
def test_one_channel_that_could_have_failed_is_enough(fields: dict[str, Any], fill: Fill) -> None:
    others = tuple(one for one in FILLS if one != fill)
    assert changed(UNFUSED, "dgrad", others, **fields).outcome is Outcome.PASSED


@pytest.mark.parametrize("fields", BLIND.values(), ids=BLIND)
def test_a_comparison_that_could_not_have_failed_does_not_hide_one_that_did(fields: dict[str, Any]) -> None:
    wrong = {"value": deviation("exact", differing=1)}
    assert changed(UNFUSED, "dgrad", ("exact",), contents=wrong, **fields).outcome is Outcome.INEXACT


def test_what_is_mostly_zero_is_told_with_both_numbers() -> None:
    (only,) = changed(UNFUSED, "bgrad", FILLS, nonzero_expected=3).findings
    assert "found 93 of 96 expected values to be 0 on exact data" in only.why


def test_what_is_uniform_is_told_as_such() -> None:
    (only,) = changed(UNFUSED, "bgrad", FILLS, uniform=True).findings
    assert "found all 96 expected values to be equal on exact data" in only.why


def test_the_share_that_may_be_zero_ends_where_the_threshold_stands() -> None:
    limit = int(NONZERO_SHARE * ELEMENTS["bgrad"])
    outcomes = [changed(UNFUSED, "bgrad", FILLS, nonzero_expected=n).outcome for n in (limit, limit + 1)]
    assert outcomes == [Outcome.VACUOUS, Outcome.PASSED]


def test_an_expert_without_tokens_may_be_zero_without_being_vacuous() -> None:
    assert {slot.empty for slot in expected(UNFUSED)} == {True, False}
    assert conclude(UNFUSED, observation(UNFUSED), Environment()).outcome is Outcome.PASSED


@pytest.mark.parametrize(("role", "outcome"), (("bgrad", Outcome.PASSED), ("wgrad", Outcome.VACUOUS)))
def test_a_uniform_grad_output_excuses_a_uniform_bgrad_alone(role: Role, outcome: Outcome) -> None:
    assert changed(UNIFORM, role, FILLS, uniform=True).roles[role] is outcome


@pytest.mark.parametrize("role", ("wgrad", "dgrad"))
def test_a_real_gradient_whose_elements_are_all_alike_is_vacuous(role: Role) -> None:
    # With one column, every element of a wgrad is the sum of the same x, and every one of a dgrad that of the weights.
    found = verdict("torch:api=loop:num_gemms=2:in_features=1:out_features=24:grad_output=expanded")
    assert found.roles[role] is Outcome.VACUOUS


def test_a_real_main_grad_is_looked_at_for_what_was_added_to_it() -> None:
    case = "torch:api=loop:num_gemms=2:in_features=1:out_features=24:fuse_wgrad_accumulation=1:grad_output=expanded"
    assert verdict(str(Case.parse(case)), only="exact").roles["wgrad"] is Outcome.VACUOUS


@pytest.mark.parametrize(("dtype", "unrounded"), (("bf16", ()), ("fp16", ("dgrad", "wgrad")), ("fp32", ())))
def test_a_uniform_grad_output_passes_with_its_notes(dtype: str, unrounded: tuple[str, ...]) -> None:
    found = verdict(str(Case.parse(f"torch:api=loop:bias=1:grad_output=expanded:dtype={dtype}")))
    assert found.outcome is Outcome.PASSED
    uniform, *others = found.notes
    assert uniform == SAME_EVERYWHERE
    assert [note.split()[3] for note in others] == list(unrounded)


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("shape", ("m_splits=uneven", "m_splits=hot", "m_splits=3,0,1", "in_features=7:out_features=2"))
def test_the_range_probe_makes_every_product_round(dtype: str, shape: str) -> None:
    assert verdict(str(Case.parse(f"torch:api=loop:{shape}:dtype={dtype}")), only="range").notes == []


def test_thin_exact_data_of_an_expert_beside_a_crowd_leaves_its_wgrad_to_random_data() -> None:
    case = "torch:api=loop:m_splits=1,2000:in_features=64:out_features=64"
    alone = [verdict(case, only=fill).roles["wgrad"] for fill in ("exact", "normal")]
    assert (alone, verdict(case).outcome) == ([Outcome.VACUOUS, Outcome.PASSED], Outcome.PASSED)


def applied(case: str) -> set[str]:
    job = pipeline.job(Case.parse(case), "all")
    seen = engine(job.target).run(job)
    return {phase.mutant for channel in seen.channels for phase in channel.phases if phase.mutant}


# What a uniform grad_output hides -> the words of the note that cover it.
HIDDEN = {
    "dgrad_row_repeated": "reads other rows of it",
    "dgrad_rows_rolled": "rows that change places in a dgrad",
    "dgrad_stale": "reads other rows of it",
    "wgrad_row_repeated": "rows that change places in a dgrad or a wgrad",
    "wgrad_rows_rolled": "rows that change places in a dgrad or a wgrad",
    "wgrad_tokens_misaligned": "pairs its rows with other tokens",
    "bgrad_result_in_fp16": "how sums of it alone are rounded",
}


@pytest.mark.parametrize("tail", ("", ":fuse_wgrad_accumulation=1"))
def test_the_note_of_a_uniform_grad_output_covers_every_fault_that_it_hides(tail: str) -> None:
    case = f"torch:api=loop:bias=1:m_splits=uneven{tail}"
    assert applied(case) - applied(f"{case}:grad_output=expanded") == HIDDEN.keys()
    assert [name for name, words in HIDDEN.items() if words not in SAME_EVERYWHERE] == []


@pytest.mark.parametrize("splits", ("all_empty", "0,0"))
def test_results_without_elements_pass_with_a_note_that_nothing_was_compared(splits: str) -> None:
    found = verdict(str(Case.parse(f"torch:api=loop:m_splits={splits}")))
    assert found.notes == ["no expert has tokens: of fprop and dgrad only the shape and dtype could be looked at"]
    assert verdict(str(Case.parse("torch:api=loop:m_splits=0,3"))).notes == []
