"""Does the oracle pass what is right, and name what is wrong? Real layers, through the real engine and judge."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import CPU, engine, observed, verdict

from gradcheck_cli import pipeline
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import expected
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, Fill, Observation, Role
from gradcheck_cli.records.roles import roles_of
from gradcheck_cli.records.splits import FEWEST_EXPERTS
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.workers.protocol import Result, decode, encode

# Expert 2 has tokens in no microbatch, 1 only in the second, 3 only in the first.
SHAPE = "torch:api=loop:bias=1:m_splits=5,0,0,9,7:in_features=16:out_features=24"
LAYOUTS = {"discrete": "", "packed": ":single_grouped_weight=1"}
FUSIONS = {"unfused": "", "fused": ":fuse_wgrad_accumulation=1"}
CASES = {f"{layout}-{fusion}": SHAPE + a + b for layout, a in LAYOUTS.items() for fusion, b in FUSIONS.items()}
UNFUSED, FUSED = ("discrete-unfused", "packed-unfused"), ("discrete-fused", "packed-fused")
DISCRETE, PACKED = ("discrete-unfused", "discrete-fused"), ("packed-unfused", "packed-fused")
ALL = tuple(CASES)
EVERY, WITH_TOKENS = [0, 1, 2, 3, 4], [0, 1, 3, 4]


class Fate(NamedTuple):
    """What a fault deserves in some of CASES: where, how grave, and what it is called."""

    role: Role
    outcome: Outcome
    experts: list[int]
    diagnosis: str = ""
    among: tuple[str, ...] = ALL
    seen_by: tuple[Fill, ...] = FILLS


MISSING, MISPLACED, PROTOCOL = Outcome.MISSING, Outcome.MISPLACED, Outcome.PROTOCOL
INEXACT, INACCURATE, NONFINITE, UNEXPECTED = (
    Outcome.INEXACT,
    Outcome.INACCURATE,
    Outcome.NONFINITE,
    Outcome.UNEXPECTED,
)

FATES: dict[str, list[Fate]] = {
    # Delivery: no tolerance is needed.
    "drop_wgrad": [
        Fate("wgrad", MISSING, EVERY, "none", UNFUSED),
        Fate("wgrad", MISSING, WITH_TOKENS, "untouched", FUSED),
    ],
    "drop_wgrad_of_one": [
        Fate("wgrad", MISSING, [4], "none", ("discrete-unfused",)),
        Fate("wgrad", MISSING, [4], "untouched", ("discrete-fused",)),
    ],
    "drop_wgrad_but_say_so": [Fate("wgrad", MISSING, WITH_TOKENS, "untouched", FUSED)],
    "wgrad_in_the_other_buffer": [
        Fate("wgrad", MISPLACED, WITH_TOKENS, "in main_grad", UNFUSED),
        Fate("wgrad", MISPLACED, WITH_TOKENS, "in .grad", FUSED),
    ],
    "wgrad_in_both_buffers": [
        Fate("wgrad", UNEXPECTED, WITH_TOKENS, "main_grad written", UNFUSED),
        Fate("wgrad", PROTOCOL, EVERY, "flag not set", FUSED),
    ],
    "flag_not_set": [Fate("wgrad", PROTOCOL, EVERY, "flag not set", FUSED)],
    "flag_not_set_on_one": [
        Fate("wgrad", PROTOCOL, [3], "flag not set", ("discrete-fused",)),
        Fate("wgrad", PROTOCOL, [0, 1, 2, 4], "flag set", ("discrete-unfused",)),
    ],
    "main_grad_replaced": [
        Fate("wgrad", UNEXPECTED, EVERY, "main_grad written", UNFUSED),
        Fate("wgrad", PROTOCOL, EVERY, "main_grad replaced", FUSED),
    ],
    "main_grad_rebound": [Fate("wgrad", PROTOCOL, EVERY, "main_grad replaced", FUSED)],
    "main_grad_flat": [Fate("wgrad", PROTOCOL, EVERY, "shape or dtype", FUSED)],
    "main_grad_too_small": [
        Fate("wgrad", UNEXPECTED, EVERY, "main_grad written", UNFUSED),
        Fate("wgrad", PROTOCOL, EVERY, "shape or dtype", FUSED),
    ],
    "main_grad_deleted": [
        Fate("wgrad", UNEXPECTED, EVERY, "main_grad written", UNFUSED),
        Fate("wgrad", MISPLACED, WITH_TOKENS, "in .grad", FUSED),
    ],
    "output_in_another_dtype": [Fate("fprop", PROTOCOL, EVERY, "shape or dtype")],
    # A flag is read as a wrapper reads it, whatever its type.
    "flag_1": [Fate("wgrad", PROTOCOL, EVERY, "flag set", UNFUSED)],
    "flag_of_torch": [Fate("wgrad", PROTOCOL, EVERY, "flag set", UNFUSED)],
    "flag_of_numpy": [Fate("wgrad", PROTOCOL, EVERY, "flag set", UNFUSED)],
    "flag_0": [Fate("wgrad", PROTOCOL, EVERY, "flag not set", FUSED)],
    "flag_false_of_torch": [Fate("wgrad", PROTOCOL, EVERY, "flag not set", FUSED)],
    # Adding a zeroed wgrad is adding nothing.
    "zero_wgrad": [
        Fate("wgrad", INEXACT, WITH_TOKENS, "zero", UNFUSED),
        Fate("wgrad", MISSING, WITH_TOKENS, "untouched", FUSED),
    ],
    "doubled_wgrad": [Fate("wgrad", INEXACT, WITH_TOKENS, "doubled")],
    "negated_wgrad": [Fate("wgrad", INEXACT, WITH_TOKENS, "negated")],
    # Accumulation. Where the one microbatch that counts gave an expert nothing, nothing is there.
    "first_microbatch_only": [
        Fate("wgrad", INEXACT, [0, 4], "first microbatch only", UNFUSED),
        Fate("wgrad", MISSING, [1], "untouched", FUSED),
    ],
    "last_microbatch_only": [
        Fate("wgrad", INEXACT, [0, 4], "last microbatch only", UNFUSED),
        Fate("wgrad", MISSING, [3], "untouched", FUSED),
    ],
    "overwritten": [
        Fate("wgrad", INEXACT, [0, 4], "last microbatch only", UNFUSED),
        Fate("wgrad", INEXACT, WITH_TOKENS, "prefill lost", FUSED),
        Fate("wgrad", INEXACT, [0, 4], "overwritten", FUSED),
    ],
    "prefill_lost": [Fate("wgrad", INEXACT, WITH_TOKENS, "prefill lost", FUSED)],
    "bf16_accumulation": [Fate("wgrad", INEXACT, EVERY, "accumulated in bf16", FUSED, ("range", "normal"))],
    # Values.
    "swapped_experts": [Fate("wgrad", INEXACT, [0], "holds expert 4")],
    "rolled_rows": [Fate("wgrad", INEXACT, [4], "rows shifted by 1")],
    "transposed_block": [Fate("wgrad", INEXACT, [4])],
    "one_expert_scaled": [Fate("wgrad", INEXACT, [4])],
    "one_wgrad_off_by_one": [Fate("wgrad", INEXACT, [4])],
    "wgrad_token_dropped": [Fate("wgrad", INEXACT, WITH_TOKENS, "last 1 of the contraction missing")],
    "garbage_in_an_empty_expert": [
        Fate("wgrad", INEXACT, [2], "", UNFUSED),
        # A millionth is lost when it is added to 257 in fp32.
        Fate("wgrad", INEXACT, [2], "", FUSED, ("exact", "normal")),
    ],
    "nan_wgrad": [Fate("wgrad", NONFINITE, [4], "not finite")],
    "inf_wgrad": [Fate("wgrad", NONFINITE, [4], "not finite")],
    "zero_bgrad": [Fate("bgrad", INEXACT, WITH_TOKENS, "zero")],
    "doubled_bgrad": [Fate("bgrad", INEXACT, WITH_TOKENS, "doubled")],
    "swapped_bgrad": [Fate("bgrad", INEXACT, [0], "holds expert 4")],
    "bgrad_token_dropped": [Fate("bgrad", INEXACT, WITH_TOKENS, "last 1 of the contraction missing")],
    "garbage_in_an_empty_bgrad": [Fate("bgrad", INEXACT, [2])],
    "zero_dgrad": [Fate("dgrad", INEXACT, WITH_TOKENS, "zero")],
    "dgrad_scaled": [Fate("dgrad", INEXACT, [4])],
    "dgrad_token_dropped": [Fate("dgrad", INEXACT, [4], "token 6 of microbatch 0 missing")],
    "dgrad_rows_reversed": [Fate("dgrad", INEXACT, WITH_TOKENS)],
    "dgrad_of_the_next_expert": [Fate("dgrad", INEXACT, [0], "holds expert 1")],
    "dgrad_tail_missing": [Fate("dgrad", INEXACT, WITH_TOKENS, "last 1 of the contraction missing")],
    "one_dgrad_off_by_one": [Fate("dgrad", INEXACT, [4])],
    "nan_dgrad": [Fate("dgrad", NONFINITE, [4], "not finite")],
    "bias_left_out": [Fate("fprop", INEXACT, WITH_TOKENS, "bias missing")],
    "fprop_tail_missing": [Fate("fprop", INEXACT, WITH_TOKENS, "last 1 of the contraction missing")],
    "fprop_token_dropped": [Fate("fprop", INEXACT, [4], "token 6 of microbatch 0 missing")],
    "fprop_scaled": [Fate("fprop", INEXACT, [4])],
    "one_fprop_off_by_one": [Fate("fprop", INEXACT, [4])],
    "inf_fprop": [Fate("fprop", NONFINITE, [4], "not finite")],
}
ROWS = {
    f"{fault}-{where}": (fault, where, fate) for fault, fates in FATES.items() for fate in fates for where in fate.among
}

# What ends a case before its slots are judged, and the words that the finding must hold.
ENDS: dict[str, tuple[Outcome, tuple[str, ...], str]] = {
    "raising_in_build": (Outcome.RAISED, ALL, "ValueError in build, exact data: no layer with 5 experts"),
    "raising_in_forward": (Outcome.RAISED, ALL, "RuntimeError in forward of microbatch 1, exact data: the second"),
    "raising_in_backward": (Outcome.RAISED, ALL, "RuntimeError in backward of microbatch 1, exact data: the second"),
    "returning_a_tuple": (Outcome.RAISED, ALL, "expected the output as one tensor; forward returned tuple"),
    "returning_nothing": (Outcome.RAISED, ALL, "expected the output as one tensor; forward returned NoneType"),
    "returning_no_graph": (Outcome.RAISED, ALL, "RuntimeError in backward of microbatch 0"),
    "discrete_after_all": (
        Outcome.NOT_THE_CASE,
        PACKED,
        "asked single_grouped_weight=1, and single_grouped_weight=0 ran",
    ),
    "claims_to_be_packed": (Outcome.NOT_THE_CASE, PACKED, "and single_grouped_weight=0 ran"),
    "one_expert_too_few": (Outcome.NOT_THE_CASE, ALL, "asked num_gemms=5, and num_gemms=4 ran"),
    "fp32_after_all": (Outcome.NOT_THE_CASE, ALL, "asked dtype=bf16, and dtype=fp32 ran"),
    "no_bias_after_all": (Outcome.NOT_THE_CASE, ALL, "asked bias=1, and bias=0 ran"),
    "unfused_after_all": (Outcome.NOT_THE_CASE, FUSED, "and fuse_wgrad_accumulation=0 ran"),
    "one_weight_in_fp32": (Outcome.NOT_THE_CASE, DISCRETE, "asked dtype=bf16, and dtype=bf16 and fp32 ran"),
    "one_bias_in_fp32": (Outcome.NOT_THE_CASE, ALL, "asked dtype=bf16, and dtype=bf16 and fp32 ran"),
}
ENDED = {f"{fault}-{where}": (fault, where) for fault, (_, among, _) in ENDS.items() for where in among}

WRONG_SHAPES = ("output_with_a_row_too_many", "output_with_a_column_too_many")


@st.composite
def cases(draw: st.DrawFn) -> str:
    """A small case of the torch candidate: any layout, fusion, split, dtype and number of microbatches."""
    splits = draw(st.lists(st.integers(0, 17), min_size=1, max_size=5))
    named = draw(st.sampled_from(sorted(FEWEST_EXPERTS)))
    axes = {
        "api": draw(st.sampled_from(["loop", "grouped_mm"])),
        "single_grouped_weight": draw(st.integers(0, 1)),
        "fuse_wgrad_accumulation": draw(st.integers(0, 1)),
        "dtype": draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        "bias": draw(st.integers(0, 1)),
        "m_splits": draw(st.sampled_from([named, ",".join(map(str, splits))])),
        "tokens_per_expert": draw(st.integers(1, 40)),
        # grouped_mm needs rows aligned to 16 bytes.
        "in_features": 8 * draw(st.integers(1, 8)),
        "out_features": 8 * draw(st.integers(1, 8)),
        "microbatches": draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 3)),
    }
    if axes["api"] == "loop":  # grouped_mm's backward refuses strides of 0
        axes["grad_output"] = draw(st.sampled_from(["random", "expanded"]))
    if axes["m_splits"] == named:
        axes["num_gemms"] = draw(st.integers(FEWEST_EXPERTS[named], 6))
    return str(Case.of({"provider": "torch", **axes}))


@settings(deadline=None, max_examples=60)
@given(cases())
def test_a_right_layer_passes_whatever_the_case(case: str) -> None:
    found = verdict(case)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


@settings(deadline=None, max_examples=15)
@given(cases())
def test_no_fault_put_into_a_right_layer_passes_whatever_the_case(case: str) -> None:
    job = pipeline.job(Case.parse(case), "all")
    found = conclude(Case.parse(case), engine(job.target).run(job), CPU)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert [name for name in found.mutants.survived if MUTANTS[name].fault.required] == []


@settings(deadline=None, max_examples=20)
@given(cases())
def test_every_slot_of_the_contract_is_seen_in_every_channel_that_ran(case: str) -> None:
    named = {(slot.slot, slot.buffer, slot.microbatch, slot.phase) for slot in expected(Case.parse(case))}
    for channel in observed(case).channels:
        seen = {(s.slot, s.buffer, p.microbatch, p.phase) for p in channel.phases for s in p.slots if s.contents}
        assert channel.inapplicable or named <= seen


@settings(deadline=None, max_examples=20)
@given(cases())
def test_every_role_of_a_case_is_passed_by_name(case: str) -> None:
    roles = roles_of(Case.parse(case))
    assert verdict(case).roles == dict.fromkeys(roles, Outcome.PASSED)


@pytest.mark.parametrize("where", ALL)
def test_the_faulty_layer_without_a_fault_passes(where: str) -> None:
    assert verdict(CASES[where], "none").findings == []


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_a_fault_gets_the_outcome_that_it_deserves(fault: str, where: str, fate: Fate) -> None:
    found = verdict(CASES[where], fault)
    assert (found.outcome, found.roles[fate.role]) == (fate.outcome, fate.outcome)


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_a_fault_is_blamed_on_its_experts_and_called_by_its_name(fault: str, where: str, fate: Fate) -> None:
    told = [(f.experts, f.diagnosis) for f in verdict(CASES[where], fault).findings if f.outcome is fate.outcome]
    assert (fate.experts, fate.diagnosis) in told


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_no_fault_is_called_by_the_name_of_another(fault: str, where: str, fate: Fate) -> None:
    told = {without_numbers(f.diagnosis) for f in verdict(CASES[where], fault).findings if f.diagnosis}
    own = {without_numbers(fate.diagnosis) for fate in FATES[fault]}
    # What a missing gradient leaves of its flag and buffers, and what an expert without tokens has of a lost one.
    besides = {"zero"} if fate.outcome is INEXACT else {"flag not set", "flag set", "main_grad replaced"}
    assert told - own <= besides


def without_numbers(diagnosis: str) -> str:
    return re.sub(r"[0-9]+", "#", diagnosis)


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_what_a_fault_leaves_alone_still_passes(fault: str, where: str, fate: Fate) -> None:
    others = {role: outcome for role, outcome in verdict(CASES[where], fault).roles.items() if role != fate.role}
    assert set(others.values()) == {Outcome.PASSED}


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_each_channel_alone_sees_what_it_can_see_of_a_fault(fault: str, where: str, fate: Fate) -> None:
    red = [fill for fill in FILLS if not verdict(CASES[where], fault, only=fill).outcome.green]
    assert tuple(red) == fate.seen_by


@pytest.mark.parametrize(("fault", "where", "fate"), tuple(ROWS.values()), ids=ROWS)
def test_random_data_alone_calls_a_wrong_value_inaccurate(fault: str, where: str, fate: Fate) -> None:
    translated = INACCURATE if fate.outcome is INEXACT else fate.outcome
    assert verdict(CASES[where], fault, only="normal").roles[fate.role] is translated


@pytest.mark.parametrize(("fault", "where"), tuple(ENDED.values()), ids=ENDED)
def test_what_is_not_the_case_or_raises_is_one_finding_in_words(fault: str, where: str) -> None:
    outcome, _, words = ENDS[fault]
    (only,) = verdict(CASES[where], fault).findings
    assert (only.outcome, words in only.why) == (outcome, True), only.why


@pytest.mark.parametrize("where", ALL)
@pytest.mark.parametrize("fault", WRONG_SHAPES)
def test_an_output_of_another_shape_is_told_with_both_shapes(fault: str, where: str) -> None:
    worst = verdict(CASES[where], fault).worst
    assert worst is not None
    assert worst.outcome is PROTOCOL
    assert worst.why.startswith("expected the output (21, 24) bfloat16; found (2")


@pytest.mark.parametrize("fault", WRONG_SHAPES)
def test_behind_an_output_of_another_shape_nothing_was_tested(fault: str) -> None:
    roles = verdict(CASES["discrete-unfused"], fault).roles
    assert {roles["dgrad"], roles["wgrad"], roles["bgrad"]} == {Outcome.UNTESTED}


@pytest.mark.parametrize("where", ALL)
def test_gradients_that_reach_parameters_put_in_place_of_the_first_ones_are_missing(where: str) -> None:
    # An optimizer holds the first ones, and would never see these.
    roles = verdict(CASES[where], "parameters_replaced").roles
    assert roles == {"fprop": Outcome.PASSED, "dgrad": Outcome.PASSED, "wgrad": MISSING, "bgrad": MISSING}


@pytest.mark.parametrize("fault", ("flag_1", "flag_of_torch", "flag_of_numpy"))
@pytest.mark.parametrize("where", FUSED)
def test_a_flag_that_a_wrapper_would_take_for_true_is_set(fault: str, where: str) -> None:
    assert verdict(CASES[where], fault).findings == []


NATIVE = f"{SHAPE}:path=native:microbatches=3"
# Where one of three forwards takes another path -> what is said to have run.
PATHS = {
    "legacy_in_the_first": "path=legacy, then native",
    "legacy_in_the_middle": "path=native, then legacy, then native",
    "legacy_in_the_last": "path=native, then legacy",
}


@pytest.mark.parametrize(("fault", "ran"), tuple(PATHS.items()), ids=PATHS)
def test_another_path_in_only_one_of_the_forwards_is_not_the_case(fault: str, ran: str) -> None:
    (only,) = verdict(NATIVE, fault).findings
    assert (only.outcome, only.diagnosis) == (Outcome.NOT_THE_CASE, "path")
    assert only.why.startswith(f"asked path=native, and {ran}")


def test_the_path_that_was_asked_in_every_forward_is_the_case() -> None:
    assert verdict(NATIVE, "native_on_every_path").findings == []


def test_a_path_that_nobody_names_is_not_the_one_that_was_asked() -> None:
    (only,) = verdict(NATIVE, "none").findings
    assert (only.outcome, only.diagnosis) == (Outcome.NOT_THE_CASE, "path")
    assert only.why == "asked path=native, and path=unknown ran."


def test_a_path_that_is_named_once_is_unknown_everywhere_else() -> None:
    (only,) = verdict(NATIVE, "names_its_path_only_once").findings
    assert (only.outcome, only.diagnosis) == (Outcome.NOT_THE_CASE, "path")


# A case that grouped_mm must refuse -> where it says so, what closes it, and what opens it.
MISALIGNED = {
    "in_features=12": ("forward", "in_features=12 in bf16", "in_features and out_features", 8),
    "out_features=12": ("backward", "out_features=12 in bf16", "in_features and out_features", 8),
    "dtype=fp32:out_features=7": ("backward", "out_features=7 in fp32", "in_features and out_features", 4),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", MISALIGNED)
def test_rows_that_grouped_mm_cannot_take_are_refused_with_what_opens_them(shape: str, layout: str) -> None:
    during, closed_by, features, multiple = MISALIGNED[shape]
    (only,) = verdict(f"torch:api=grouped_mm:{shape}{layout}").findings
    assert (only.outcome, only.diagnosis) == (Outcome.REFUSED, "grouped-mm-needs-alignment")
    assert f"({closed_by}): RuntimeError in {during} of microbatch 0, exact data: strides" in only.why
    assert only.unlock.startswith(f"{features} that are multiples of {multiple} in")


def test_a_layer_that_fills_what_it_was_given_harms_neither_its_own_case_nor_the_next() -> None:
    case = f"{SHAPE}:seed=20"  # data that no other test has drawn
    assert [verdict(case, fault).findings for fault in ("fills_what_it_was_given", "")] == [[], []]


def crossed(fault: str) -> Observation:
    """What is seen of a fault, as it comes out at the parent's end of the pipe."""
    message = decode(encode(Result(observation=observed(CASES["discrete-fused"], fault))))
    assert isinstance(message, Result)
    return message.observation


def test_what_a_layer_says_in_types_of_numpy_reaches_the_parent_in_plain_ones() -> None:
    said = {"color": "red", "graph": 1, "layers": 3}
    seen = crossed("claims_in_types_of_numpy")
    assert said.items() <= seen.effective.items()
    assert conclude(Case.parse(seen.case), seen, CPU).outcome is Outcome.PASSED


def test_an_exception_in_characters_that_no_file_holds_reaches_the_parent_and_is_raised() -> None:
    seen = crossed("raising_a_lone_surrogate")
    (only,) = conclude(Case.parse(seen.case), seen, CPU).findings
    assert only.outcome is Outcome.RAISED
    assert only.why.endswith("raised ValueError in forward of microbatch 0, exact data: caf\\udce9 is no file")


def test_a_layer_without_memory_is_the_layers_own_failure() -> None:
    (only,) = verdict(CASES["discrete-fused"], "out_of_memory").findings
    assert (only.outcome, only.diagnosis) == (Outcome.RAISED, "MemoryError")


def test_a_layer_that_claims_what_is_no_axis_is_judged_by_the_axes() -> None:
    assert verdict(CASES["discrete-fused"], "claims_an_axis_that_is_none").outcome is Outcome.PASSED


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("fault", ("one_expert_scaled", "dgrad_scaled", "fprop_scaled", "one_wgrad_off_by_one"))
def test_a_small_error_is_seen_in_every_dtype_by_every_channel(fault: str, dtype: str) -> None:
    case = f"{CASES['packed-fused']}:dtype={dtype}"
    case = str(Case.parse(case))
    assert [verdict(case, fault, only=fill).outcome for fill in FILLS] == [INEXACT, INEXACT, INACCURATE]


def test_operands_of_a_lower_precision_than_asked_are_seen_where_integers_are_large_or_data_is_random() -> None:
    case = "torch:api=loop:dtype=fp32:m_splits=5,0,9:in_features=16:out_features=24"
    assert [verdict(case, "operands_in_bf16", only=fill).outcome for fill in FILLS] == [
        Outcome.PASSED,
        INEXACT,
        INACCURATE,
    ]


def test_rows_out_of_order_are_invisible_under_a_uniform_grad_output() -> None:
    # Why grad_output is random by default: every wgrad row is the same here.
    assert verdict(f"{CASES['discrete-unfused']}:grad_output=expanded", "rolled_rows").outcome is Outcome.PASSED


@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
@pytest.mark.parametrize("fault", ("wgrad_cut_off", "wgrad_flushed", "fprop_through_fp16", "dgrad_through_fp16"))
def test_a_gradient_that_is_right_near_one_alone_is_not_right(fault: str, dtype: str) -> None:
    case = str(Case.parse(f"torch:api=loop:fuse_wgrad_accumulation=1:m_splits=uneven:dtype={dtype}"))
    assert verdict(case, fault).outcome.gravity >= INEXACT.gravity
    if fault == "wgrad_cut_off":
        assert verdict(case, fault, only="normal").outcome is Outcome.PASSED


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_a_grad_that_is_rounded_once_instead_of_each_time_is_right(dtype: str) -> None:
    case = str(Case.parse(f"torch:api=loop:m_splits=uneven:dtype={dtype}"))
    assert verdict(case, "Master").outcome is Outcome.PASSED
