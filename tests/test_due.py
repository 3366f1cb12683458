"""What must hold after each turn of a knob: where a wgrad is due, what is frozen, late, overwritten or a dummy?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import CPU, engine, verdict
from test_mutants import judged, phases

from gradcheck_cli import pipeline
from gradcheck_cli.compute.contents import contents
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import BEFORE, NOTHING, expected, in_words
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.base import from_json, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import Due, due
from gradcheck_cli.records.observation import Fill, Observation
from gradcheck_cli.records.verdict import Outcome

SMALL = "bias=1:m_splits=5,0,9,3:in_features=16:out_features=24"
FUSED = f"torch:api=loop:fuse_wgrad=1:{SMALL}"
PLAIN = f"torch:api=loop:{SMALL}"

# What of expert 0 and 1 is due after the first and after the second microbatch.
WHERE = {
    PLAIN: [Due("grad", 0, prefill=False)] * 4,
    FUSED: [Due("main_grad", 0, prefill=True)] * 4,
    f"{FUSED}:overwrite_main_grad=all": [Due("main_grad", k, prefill=False) for k in (0, 0, 1, 1)],
    f"{FUSED}:overwrite_main_grad=some": [
        Due("main_grad", k, prefill=kept) for k, kept in ((0, True), (0, False), (0, True), (1, False))
    ],
    f"{FUSED}:is_first_microbatch=first": [Due("main_grad", 0, prefill=False)] * 4,
    f"{FUSED}:frozen_weights=all": [None] * 4,
    f"{PLAIN}:frozen_weights=first": [None, Due("grad", 0, prefill=False)] * 2,
}


@pytest.mark.parametrize(("text", "wanted"), WHERE.items(), ids=WHERE)
def test_where_a_wgrad_is_due_follows_from_the_case(text: str, wanted: list[Due | None]) -> None:
    case = Case.parse(text)
    assert [due(case, i, k) for k in range(2) for i in range(2)] == wanted


# Each knob alone, and some together; a right layer passes, and every fault that its contract names is seen.
KNOBS = {
    f"{FUSED}:overwrite_main_grad=all": {"wgrad_not_overwritten", "wgrad_untouched"},
    f"{FUSED}:overwrite_main_grad=some": {"wgrad_not_overwritten", "wgrad_prefill_lost"},
    f"{FUSED}:is_first_microbatch=first:microbatches=3": {"wgrad_not_overwritten", "wgrad_first_only"},
    f"{FUSED}:main_grad_dtype=bf16:microbatches=3": {"wgrad_other_dtype", "wgrad_prefill_lost"},
    f"{FUSED}:main_grad_dtype=bf16:dtype=fp32": {"wgrad_other_dtype", "wgrad_prefill_lost"},
    f"{FUSED}:grad_added_to_main_grad=absent": {"wgrad_dummy_unasked"},
    f"{FUSED}:zero_out_wgrad=1": {"wgrad_dummy_not_zero", "wgrad_dummy_shape"},
    f"{FUSED}:delay_wgrad_compute=1": {"wgrad_early", "wgrad_untouched"},
    f"{PLAIN}:delay_wgrad_compute=1": {"wgrad_early", "wgrad_last_only", "bgrad_last_only"},
    f"{PLAIN}:delay_wgrad_compute=1:main_grad=absent": {"wgrad_last_only"},
    f"{PLAIN}:main_grad=absent": {"wgrad_missing"},
    f"{PLAIN}:frozen_weights=all": {"wgrad_frozen_given", "wgrad_frozen_main_grad"},
    f"{PLAIN}:frozen_weights=first": {"wgrad_frozen_given", "wgrad_doubled"},
    f"{FUSED}:frozen_weights=last": {"wgrad_frozen_given", "wgrad_frozen_main_grad", "wgrad_untouched"},
    f"{PLAIN}:frozen_input=1": {"dgrad_frozen_given"},
    f"{PLAIN}:frozen_bias=1": {"bgrad_frozen_given"},
    f"{PLAIN}:padded_tail=nan": {"wgrad_tail_read", "bgrad_tail_read"},
    f"{FUSED}:padded_tail=large": {"wgrad_tail_read", "bgrad_tail_read"},
    f"{FUSED}:padded_tail=zero:return_bias=1": {"fprop_bias_twice"},
    f"{PLAIN}:single_grouped_bias=1:grad_output=transposed": {"bgrad_other_shape", "bgrad_missing"},
    f"{PLAIN}:single_grouped_bias=1:return_bias=1:grad_output=offset:input_layout=transposed": {"bgrad_doubled"},
    f"{PLAIN}:input_layout=offset:num_gemms=4": {"dgrad_rows_rolled"},
    f"{FUSED}:delay_wgrad_compute=1:overwrite_main_grad=all:frozen_input=1": {"wgrad_early", "wgrad_not_overwritten"},
}


@pytest.mark.parametrize(("text", "faults"), KNOBS.items(), ids=KNOBS)
def test_a_right_layer_passes_and_every_fault_of_the_clause_is_seen(text: str, faults: set[str]) -> None:
    found = judged(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert found.mutants.survived == []
    assert found.mutants.killed > 50
    assert faults <= {phase.mutant for phase in phases(text)}


# Fill, place -> what 2.17.1 and 2.20.2 held there on an H200, legacy path, in units of the fill: its product rounded to
# bf16 before the buffer was added, and then once more. One rounding alone gives 520 and 0.00362.
ROUNDED_TWICE: dict[Fill, tuple[tuple[int, int], float]] = {"range": ((13, 61), 524.0), "normal": ((1, 8), 0.0)}


@pytest.mark.parametrize(("fill", "seen"), ROUNDED_TWICE.items(), ids=ROUNDED_TWICE)
def test_a_bf16_main_grad_may_be_rounded_before_and_after_it_is_added_to(
    fill: Fill, seen: tuple[tuple[int, int], float]
) -> None:
    case = Case.parse("te:api=module:path=legacy:fuse_wgrad=1:main_grad_dtype=bf16:m_splits=empty_middle")
    at, found = seen
    reference, rounding = prepare(case, fill, torch.device("cpu")), pipeline.job(case).rounding["wgrad"]
    held = contents(case, reference, rounding, "wgrad", "main_grad", 0)["prefill+sum"]
    value = float(held.value[0][at]) * 2.0 ** -reference.exponents["wgrad"]
    if fill == "range":
        assert held.otherwise != ()
        assert (value, float(held.otherwise[0][0][at]) * 2.0 ** -reference.exponents["wgrad"]) == (520.0, found)
        return
    assert held.fixed is not None
    assert held.free is not None
    assert abs(value - found) <= float(held.fixed[0][at] + rounding.lambda_ * held.free[0][at])
    once = replace(held, fixed=held.fixed - rounding.buffer * reference.roles[0]["wgrad"].value.abs())
    assert once.fixed is not None
    assert abs(value - found) > float(once.fixed[0][at] + rounding.lambda_ * held.free[0][at])


def test_frozen_parts_have_slots_that_must_stay_empty() -> None:
    case = Case.parse(f"{PLAIN}:frozen_weights=first:frozen_input=1:frozen_bias=1")
    empty = {slot.slot for slot in expected(case) if slot.content == NOTHING}
    assert empty == {"wgrad[0]", *(f"{role}[{i}]" for role in ("dgrad", "bgrad") for i in range(4))}


def test_what_is_delayed_is_looked_at_before_and_after() -> None:
    slots = [slot for slot in expected(Case.parse(f"{FUSED}:delay_wgrad_compute=1")) if slot.role == "wgrad"]
    assert {(slot.phase, slot.content) for slot in slots} == {("backward", BEFORE), ("backward_dw", "prefill+sum")}


@pytest.mark.parametrize(
    ("tail", "calls"),
    (("", 1), (":grad_added_to_main_grad=absent", None), (":delay_wgrad_compute=1", None), (":tied_weights=1", 1)),
)
def test_a_backward_calls_the_hooks_of_each_weight_that_a_wrapper_waits_for(tail: str, calls: int | None) -> None:
    slots = [slot for slot in expected(Case.parse(f"{FUSED}{tail}")) if slot.role == "wgrad" and slot.content != BEFORE]
    assert {slot.hooks for slot in slots} == {calls}


SAID = {
    "overwrite_main_grad=some": "overwrite_main_grad of those of experts [1, 3]: main_grad is the last microbatch's",
    "is_first_microbatch=first": "the first microbatch overwrites the prefill",
    "zero_out_wgrad=1": "whose content is zero",
    "grad_added_to_main_grad=attached": "each backward hands autograd a gradient of each weight, or a dummy, once",
    "grad_added_to_main_grad=absent": ".grad stays None",
    "delay_wgrad_compute=1": "backward_dw() is called once after each backward",
    "frozen_weights=last": "the weight of expert 3 is frozen",
    "frozen_input=1": "x asks for none",
    "frozen_bias=1": "asks for none, and stays None",
    "padded_tail=nan": "16 rows of x and grad_output lie past sum(m_splits), all NaN",
    "single_grouped_bias=1": ".grad of the packed bias, (4, 24)",
    "return_bias=1": "the layer returns its biases",
    "main_grad_dtype=bf16": "(24, 16) bfloat16, is its prefill plus",
}


@pytest.mark.parametrize(("axis", "words"), SAID.items(), ids=SAID)
def test_show_says_it_in_words(axis: str, words: str) -> None:
    assert words in "\n".join(in_words(Case.parse(f"{FUSED}:{axis}")))


EXCLUDED = {
    f"{FUSED}:main_grad=absent": "fusion-needs-main-grad",
    f"{PLAIN}:zero_out_wgrad=1": "only-with-fusion",
    f"{FUSED}:single_grouped_weight=1:overwrite_main_grad=some": "one-weight-has-one-attribute",
    "torch:api=loop:frozen_bias=1": "frozen-bias-needs-bias",
    "torch:api=loop:frozen_weights=all:frozen_input=1": "something-must-learn",
    "te:api=module:padded_tail=nan": "tail-needs-native",
    "torch:api=loop:return_bias=1": "bias-knobs-need-bias",
    "torch:api=loop:m_splits_as=list": "arguments-of-the-module",
    "te:api=op:save_original_input=1": "arguments-of-the-module",
    "te:api=op:fuse_wgrad=1:is_first_microbatch=first": "first-microbatch-is-an-argument",
}


@pytest.mark.parametrize(("text", "constraint"), EXCLUDED.items(), ids=EXCLUDED)
def test_what_no_machine_can_be_asked_is_excluded(text: str, constraint: str) -> None:
    point = matrix.excluded(Case.parse(text))
    assert point is not None
    assert point.constraint == constraint


RANDOM = st.fixed_dictionaries(
    {
        "fuse_wgrad_accumulation": st.booleans(),
        "single_grouped_weight": st.booleans(),
        "main_grad": st.sampled_from(("attached", "absent")),
        "main_grad_dtype": st.sampled_from(("fp32", "bf16")),
        "grad_added_to_main_grad": st.sampled_from(("attached", "absent")),
        "overwrite_main_grad": st.sampled_from(("none", "all", "some")),
        "zero_out_wgrad": st.booleans(),
        "is_first_microbatch": st.sampled_from(("unset", "first")),
        "delay_wgrad_compute": st.booleans(),
        "tied_weights": st.booleans(),
        "frozen_weights": st.sampled_from(("none", "all", "first", "last")),
        "frozen_input": st.booleans(),
        "frozen_bias": st.booleans(),
        "bias": st.booleans(),
        "dtype": st.sampled_from(("bf16", "fp16", "fp32")),
        "microbatches": st.sampled_from((1, 2, 3, 5)),
        "m_splits": st.sampled_from(("5,0,9,3", "0,0", "1,17", "12")),
        "grad_output": st.sampled_from(("random", "expanded", "transposed", "offset")),
        "input_layout": st.sampled_from(("contiguous", "transposed", "offset")),
        "padded_tail": st.sampled_from(("none", "zero", "large", "nan")),
        "single_grouped_bias": st.booleans(),
        "return_bias": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


@settings(max_examples=60, deadline=None)
@given(RANDOM)
def test_whatever_is_turned_a_right_layer_is_never_called_wrong(axes: dict[str, object]) -> None:
    case = Case.of({"provider": "torch", "api": "loop", "in_features": 12, "out_features": 8, **axes})
    if matrix.excluded(case) is None:
        found = verdict(str(case))
        assert not [f for f in found.findings if f.outcome not in (Outcome.UNTESTED, Outcome.VACUOUS)], found.findings


def test_a_written_value_that_happens_to_be_the_prefill_is_not_missing() -> None:
    knobs = "fuse_wgrad=1:overwrite_main_grad=some:zero_out_wgrad=1:is_first_microbatch=first:delay_wgrad_compute=1"
    data = (
        "bias=1:single_grouped_bias=1:m_splits=1,2,2,2,7:padded_tail=zero:in_features=1:out_features=1:microbatches=1"
    )
    layout = "grad_output=offset:input_layout=transposed:seed=235"
    assert verdict(str(Case.parse(f"torch:api=loop:{knobs}:{data}:{layout}"))).outcome is Outcome.PASSED


def test_the_only_expert_of_a_packed_bias_is_no_row_of_another_shape() -> None:
    found = judged("torch:api=loop:bias=1:single_grouped_bias=1:m_splits=33:in_features=16:out_features=24")
    assert found.outcome is Outcome.PASSED
    assert found.mutants is not None
    assert found.mutants.survived == []


class LeavesNan(LoopLayer):
    """A layer whose wgrads are not finite once they are computed."""

    def backward_dw(self) -> None:
        super().backward_dw()
        for weight in self._weights:
            weight.main_grad.fill_(torch.nan)


def test_what_was_left_not_finite_before_a_wgrad_is_due_is_recorded_and_judged() -> None:
    case = Case.parse(f"{FUSED}:delay_wgrad_compute=1")
    seen = engine("test_due:LeavesNan").run(msgspec.structs.replace(pipeline.job(case), target="test_due:LeavesNan"))
    assert from_json(to_json(seen), Observation) == seen
    found = conclude(case, seen, CPU)
    assert found.outcome is Outcome.NONFINITE
    assert [(one.slot, one.outcome, one.experts) for one in found.findings] == [
        ("wgrad[0]", Outcome.NONFINITE, [0, 1, 2, 3])
    ]
