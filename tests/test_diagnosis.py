"""Does a diagnosis name the fault that the distances show, and no other?"""

from __future__ import annotations

import pytest

from gradcheck_cli.judge.bounds import recognised
from gradcheck_cli.judge.diagnosis import NAMES, diagnose
from gradcheck_cli.records.observation import FILLS, Fill, SlotSeen

# Hypothesis, with a parameter where it has one -> what it is called.
WRONG = {name: called for name, called in NAMES.items() if "{}" not in called} | {
    "expert=3": "holds expert 3",
    "shift=-1": "rows shifted by -1",
    "tail=16": "last 16 of the contraction missing",
    "token=5 of microbatch 1": "token 5 of microbatch 1 missing",
    "poison=0x71": "uninitialised (0x71)",
    "scaled=2": "doubled",
    "scaled=0.0078125": "scaled by 0.0078125",
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
    assert diagnose(slot({"sum": 1.0, "scaled=0": 0.0, "zero": 0.01}), "sum", "bf16", "normal") == "zero"


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
