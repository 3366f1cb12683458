"""Does a diagnosis name the fault that the distances show, and no other?"""

from __future__ import annotations

import re

import pytest
from in_process import verdict

from gradcheck_cli.judge.bounds import recognised
from gradcheck_cli.judge.diagnosis import NAMES, diagnose
from gradcheck_cli.records.observation import FILLS, Fill, SlotSeen

# Hypothesis, with a parameter where it has one -> what it is called.
WRONG = {name: called for name, called in NAMES.items() if "{}" not in called} | {
    "expert=3": "holds expert 3",
    "strides=x": "x read as if contiguous",
    "shift=-1": "rows shifted by -1",
    "tail=16": "last 16 of the contraction missing",
    "token=5 of microbatch 1": "token 5 of microbatch 1 missing",
    "poison=0x71": "uninitialised (0x71)",
    "scaled=2": "doubled",
    "scaled=0.0078125": "scaled by 0.00781",
    "scaled=-1": "negated",
}
NEAR = {"bf16": 0.01, "fp16": 0.001, "fp32": 1e-7}


def slot(residuals: dict[str, float], nonfinite: int = 0) -> SlotSeen:
    return SlotSeen(role="wgrad", expert=0, buffer="main_grad", present=True, residuals=residuals, nonfinite=nonfinite)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("hypothesis", "called"), tuple(WRONG.items()), ids=WRONG)
def test_a_slot_that_holds_a_wrong_content_is_called_by_its_name(hypothesis: str, called: str, fill: Fill) -> None:
    assert diagnose(slot({"prefill+sum": 1.0, hypothesis: 0.0}), "prefill+sum", "bf16", fill) == called


@pytest.mark.parametrize("fill", FILLS)
def test_a_main_grad_that_holds_the_bare_sum_has_lost_its_prefill(fill: Fill) -> None:
    assert diagnose(slot({"prefill+sum": 1.0, "prefill lost": 0.0}), "prefill+sum", "bf16", fill) == "prefill lost"


@pytest.mark.parametrize(("dtype", "near"), tuple(NEAR.items()), ids=NEAR)
def test_random_data_may_be_a_few_roundings_away_from_a_content(dtype: str, near: float) -> None:
    assert diagnose(slot({"sum": 1.0, "scaled=2": near}), "sum", dtype, "normal") == "doubled"


@pytest.mark.parametrize("fill", ("exact", "range"))
def test_integers_must_match_a_content_bit_for_bit(fill: Fill) -> None:
    assert diagnose(slot({"sum": 1.0, "zero": 1e-12}), "sum", "bf16", "exact") == ""


def test_no_content_is_named_that_is_too_far_away() -> None:
    assert diagnose(slot({"sum": 1.0, "zero": 0.2}), "sum", "bf16", "normal") == ""


def test_the_simplest_of_several_contents_is_named() -> None:
    assert diagnose(slot({"sum": 1.0, "scaled=0": 0.01, "zero": 0.02}), "sum", "bf16", "normal") == "zero"


def test_a_factor_of_nearly_one_explains_nothing() -> None:
    # Least squares finds such a factor for every error.
    assert diagnose(slot({"sum": 0.02, "scaled=1.01": 0.001}), "sum", "bf16", "normal") == ""


def test_a_small_error_that_is_near_to_a_wrong_content_too_is_not_explained_by_it() -> None:
    assert diagnose(slot({"sum": 0.01, "accumulated in bf16": 0.009}), "sum", "bf16", "normal") == ""


def test_a_nan_of_the_poison_is_told_from_one_that_was_computed() -> None:
    seen = slot({"sum": 0.0, "poison=0xFF": 0.0}, nonfinite=2)
    assert diagnose(seen, "sum", "bf16", "exact") == "uninitialised (0xFF)"
    assert diagnose(slot({"sum": 0.0}, nonfinite=2), "sum", "bf16", "exact") == ""


def test_a_content_no_nearer_than_the_right_one_explains_nothing() -> None:
    # An expert whose only tokens came last: the last microbatch is the sum.
    assert diagnose(slot({"sum": 0.01, "last": 0.01}), "sum", "bf16", "normal") == ""


def test_what_is_not_finite_is_not_explained_by_its_finite_part() -> None:
    assert diagnose(slot({"sum": 1.0, "zero": 0.0}, nonfinite=1), "sum", "bf16", "exact") == ""


def test_recognition_is_finer_where_the_dtype_is() -> None:
    assert recognised("fp32") < recognised("fp16") < recognised("bf16") < 0.05


# A layer of the provider `faults` -> what its fault is called, and what else may be said of some of its slots.
CALLED: dict[str, tuple[str, set[str]]] = {
    "wgrad_doubled": ("doubled", set()),
    "wgrad_halved": ("scaled by #", set()),
    "dgrad_scaled_down": ("scaled by #", set()),
    "wgrad_zeroed": ("untouched", set()),
    "bgrad_zeroed": ("zero", set()),
    "wgrad_token_dropped": ("last # of the contraction missing", set()),
    "dgrad_token_dropped": ("token # of microbatch # missing", set()),
    "fprop_tail_missing": ("last # of the contraction missing", set()),
    "wgrad_experts_swapped": ("holds expert #", set()),
    "dgrad_other_weight": ("holds expert #", set()),
    "fprop_other_weight": ("holds expert #", set()),
    "dgrad_rows_rolled": ("rows shifted by #", set()),
    "wgrad_memory_transposed": ("transposed", set()),
    "fprop_bias_missing": ("bias missing", set()),
    "fprop_bias_twice": ("bias added twice", set()),
    "fprop_uninitialised_71": ("uninitialised (#x#)", set()),
    "fprop_summed_in_bf16": ("low-precision accumulation", set()),
    "wgrad_accumulated_in_bf16": ("accumulated in bf#", set()),
    "wgrad_prefill_lost": ("prefill lost", set()),
    # After the first microbatch they are no fault yet, or look like a simpler one.
    "wgrad_last_only:microbatches=2": ("last microbatch only", set()),
    "wgrad_first_only:microbatches=2": ("first microbatch only", set()),
    "wgrad_overwritten:microbatches=2": ("overwritten", {"prefill lost"}),
    "wgrad_doubled_before_each:microbatches=2": ("buffer doubled before each microbatch", set()),
    # Nothing that is known: one element, and a part of a matrix.
    "wgrad_one_ulp": ("", set()),
    "wgrad_block_transposed": ("", set()),
    "dgrad_one_percent": ("", set()),
}


@pytest.mark.parametrize(("fault", "called"), tuple(CALLED.items()), ids=CALLED)
def test_a_layer_with_a_fault_is_called_by_its_name_and_by_no_other(fault: str, called: tuple[str, set[str]]) -> None:
    name, besides = called
    api, _, more = fault.partition(":")
    case = f"faults:api={api}:fuse_wgrad_accumulation=1:bias=1:m_splits=32,16,24:in_features=48:out_features=64"
    found = verdict(f"{case}:{more or 'microbatches=1'}")
    assert not found.outcome.green
    told = {re.sub(r"-?[0-9]+(\.[0-9]+)?(e-[0-9]+)?", "#", one.diagnosis) for one in found.findings}
    assert name in told
    assert told - {name, ""} <= besides
