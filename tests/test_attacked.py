"""What did an attack on the observer find? Layers that got past it, or took gradcheck down, and what each gets now."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from in_process import observed, verdict

from gradcheck_cli.compute.lent import GUARD, changed, guarded
from gradcheck_cli.compute.trial import LONGEST, MOST_WARNINGS
from gradcheck_cli.records.observation import FILLS, Observation, Phase
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.workers.protocol import Failed, Result, decode, encode

# Expert 2 has tokens in no microbatch, 1 only in the second, 3 only in the first; as many outputs as inputs.
SHAPE = "torch:api=loop:bias=1:m_splits=5,0,0,9,7:in_features=16:out_features=16"
PACKED, FUSED = ":single_grouped_weight=1", ":fuse_wgrad_accumulation=1"
TAILS = {"discrete": "", "packed": PACKED, "fused": FUSED, "packed and fused": PACKED + FUSED}
every_layout = pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)


def unexpected(found: Verdict) -> list[Finding]:
    return [finding for finding in found.findings if finding.outcome is Outcome.UNEXPECTED]


def disturbed(fault: str, tail: str = "") -> list[tuple[Phase, int, str]]:
    """What is told to be changed in the first channel: after which phase, of which microbatch."""
    channel = observed(SHAPE + tail, fault).channels[0]
    return [(phase.phase, phase.microbatch, name) for phase in channel.phases for name in phase.disturbed]


@every_layout
def test_a_dgrad_that_autograd_was_not_given_is_missing(tail: str) -> None:
    assert verdict(SHAPE + tail, "dgrad_put_into_x_by_hand").roles["dgrad"] is Outcome.MISSING


# What is spoiled in forward and put back in backward -> the names of all that is found changed.
SPOILED = {
    "spoils_x_for_a_while": ("x",),
    "spoils_the_weights_for_a_while": tuple(f"weight[{i}]" for i in range(5)),
    "spoils_the_biases_for_a_while": tuple(f"bias[{i}]" for i in range(5)),
}


@every_layout
@pytest.mark.parametrize(("fault", "names"), SPOILED.items(), ids=SPOILED)
def test_what_is_put_back_in_backward_was_changed_after_the_forward(
    fault: str, names: tuple[str, ...], tail: str
) -> None:
    told = disturbed(fault, tail)
    assert [one for one in told if one[1] == 0] == [("forward", 0, name) for name in names]
    (finding,) = unexpected(verdict(SHAPE + tail, fault))
    assert finding.why.endswith("(after the forward of microbatch 0, exact data)")


@pytest.mark.parametrize("name", ("x", "grad_output"))
def test_what_was_lent_in_an_earlier_microbatch_is_still_looked_at(name: str) -> None:
    assert disturbed(f"writes_an_earlier_{name}") == [("backward", 1, f"{name} of microbatch 0")]
    (finding,) = unexpected(verdict(SHAPE, f"writes_an_earlier_{name}"))
    assert finding.why.startswith(f"expected {name} of microbatch 0 to hold what the candidate was given")


def test_an_output_stays_as_it_was_until_its_backward() -> None:
    tied = ":tied_weights=1:microbatches="
    told = [("forward", 1, "output of microbatch 0"), ("forward", 3, "output of microbatch 2")]
    assert disturbed("SpoilsEarlierOutput", f"{tied}4") == told
    (finding,) = unexpected(verdict(f"{SHAPE}{tied}2", "SpoilsEarlierOutput"))
    assert "expected the output of microbatch 0 to stay as the forward left it until its backward" in finding.why
    # An output whose backward is over is nobody's any more.
    assert disturbed("SpoilsEarlierOutput") == []


def test_each_backward_says_for_itself_that_it_has_added_to_main_grad() -> None:
    found = verdict(f"{SHAPE}{FUSED}", "FlagsOnce")
    assert found.roles["wgrad"] is Outcome.PROTOCOL
    assert "expected grad_added_to_main_grad=True; found False (after the backward of microbatch 1" in str(found.worst)


def test_a_backward_that_hands_autograd_none_is_seen_by_the_hooks_it_does_not_call() -> None:
    found = verdict(f"{SHAPE}{FUSED}", "AddsByHand")
    assert found.roles["wgrad"] is Outcome.PROTOCOL
    assert "expected the backward to hand autograd the weight's gradient, or a dummy, 1 time" in str(found.worst)


def test_what_is_changed_is_told_once() -> None:
    assert disturbed("moves_a_weight") == [("backward", 0, "memory of weight[4]")]


@every_layout
def test_zero_times_what_lies_past_x_is_seen(tail: str) -> None:
    assert verdict(SHAPE + tail, "zero_times_what_lies_beside_x").roles["fprop"] is Outcome.NONFINITE


@pytest.mark.parametrize(("fault", "side"), (("writes_the_last_byte", "after"), ("writes_the_first_byte", "before")))
def test_what_surrounds_a_tensor_is_looked_at_to_its_ends(fault: str, side: str) -> None:
    (finding,) = unexpected(verdict(SHAPE, fault))
    assert finding.diagnosis == f"written {side} x"


@pytest.mark.parametrize("rows", range(1, 40))
def test_a_guard_begins_at_the_byte_after_the_last_row_and_ends_with_the_storage(rows: int) -> None:
    copy = guarded("x", torch.rand(rows, 3).bfloat16(), 0xFF)
    whole = torch.empty(0, dtype=torch.uint8).set_(copy.tensor.untyped_storage())
    start = copy.tensor.storage_offset() * 2
    after = whole[start + rows * 3 * 2 :]
    assert (set(whole[:start].tolist()), set(after.tolist())) == ({0xFF}, {0xFF})
    assert min(start, len(after)) >= GUARD
    covered = sum(len(now) for _, now, _ in copy.pairs()) + rows * 3 * 2
    assert covered == len(whole)
    whole[-1] = 0
    assert changed(copy.pairs()) == ["guard after x"]


# A layer whose values are right -> where it is asked, the name of what it leaves otherwise, its slot, its diagnosis.
LEFT = {
    "main_grad restrided": (
        "transposes_main_grad",
        FUSED,
        "layout of main_grad[0]",
        "main_grad[0]",
        "layout of main_grad changed",
    ),
    "packed main_grad restrided": (
        "transposes_main_grad",
        PACKED + FUSED,
        "layout of main_grad",
        "case",
        "layout of main_grad changed",
    ),
    "main_grad restrided where it is nobody's": (
        "transposes_main_grad",
        "",
        "layout of main_grad[0]",
        "main_grad[0]",
        "layout of main_grad changed",
    ),
    "x moved": ("moves_x", "", "memory of x", "case", "memory of x changed"),
    "a weight moved": ("moves_a_weight", "", "memory of weight[4]", "weight[4]", "memory of weight changed"),
    "a packed weight moved": ("moves_a_weight", PACKED, "memory of weight", "case", "memory of weight changed"),
    "a weight frozen": (
        "freezes_a_weight",
        "",
        "requires_grad of weight[0]",
        "weight[0]",
        "requires_grad of weight changed",
    ),
    "a bias frozen": ("freezes_a_bias", FUSED, "requires_grad of bias[0]", "bias[0]", "requires_grad of bias changed"),
    "a grad expanded": (
        "expanded_grad",
        "",
        "overlap in the grad of weight[2]",
        "weight[2]",
        "elements of the grad of weight share memory",
    ),
    "an x.grad expanded": (
        "expanded_x_grad",
        "",
        "overlap in the grad of x",
        "case",
        "elements of the grad of x share memory",
    ),
}


@pytest.mark.parametrize(("fault", "tail", "name", "slot", "diagnosis"), tuple(LEFT.values()), ids=LEFT)
def test_what_a_trainer_would_trip_over_is_unexpected(
    fault: str, tail: str, name: str, slot: str, diagnosis: str
) -> None:
    assert name in [told for _, _, told in disturbed(fault, tail)]
    (finding,) = unexpected(verdict(SHAPE + tail, fault))
    assert (finding.slot, finding.diagnosis) == (slot, diagnosis)
    assert finding.why.startswith("expected ")


def test_a_weight_of_another_size_is_changed_and_in_other_places() -> None:
    names = {name for _, _, name in disturbed("shrinks_a_weight", f"{PACKED}:microbatches=1")}
    assert {f"weight[{i}]" for i in range(5)} | {"layout of weight"} <= names


# What the candidate says of itself, in whatever way -> words of the message that is kept of it.
SAID = {
    "raising_without_words": "Mute, whose __str__ raises RuntimeError",
    "raising_without_a_cause": "a value",
    "raising_a_long_message": "long long",
    "raising_a_lone_surrogate": "caf\\udce9 is no file",
}


@pytest.mark.parametrize(("fault", "words"), SAID.items(), ids=SAID)
def test_an_exception_is_the_candidates_whatever_it_says(fault: str, words: str) -> None:
    raised = observed(SHAPE, fault).raised
    assert raised is not None
    assert raised.message.startswith(words)
    assert verdict(SHAPE, fault).outcome is Outcome.RAISED


# What is said without end -> the text that is kept of it.
KEPT: dict[str, Callable[[Observation], object]] = {
    "raising_a_long_message": lambda seen: seen.raised and seen.raised.message,
    "warning_at_length": lambda seen: seen.warnings[0],
    "claims_at_length": lambda seen: seen.effective["cache"],
}


@pytest.mark.parametrize(("fault", "kept"), KEPT.items(), ids=KEPT)
def test_what_is_said_without_end_is_cut_and_says_so(fault: str, kept: Callable[[Observation], object]) -> None:
    text = kept(observed(SHAPE, fault))
    assert str(text).endswith("long ... (cut here; 9999999 characters in all)")


@pytest.mark.parametrize("fault", KEPT)
def test_what_is_said_without_end_makes_no_message_without_end(fault: str) -> None:
    own, right = (len(encode(Result(observation=observed(SHAPE, one)))) for one in (fault, ""))
    assert own < right + 10 * LONGEST


def test_a_warning_without_words_is_one_all_the_same() -> None:
    told = observed(SHAPE, "warning_without_words").warnings
    assert told == ["Mumbling: Mumbling, whose __str__ raises RuntimeError"]
    assert verdict(SHAPE, "warning_without_words").outcome is Outcome.PASSED


def test_warnings_without_end_are_cut_and_say_so() -> None:
    told = observed(SHAPE, "warning_often").warnings
    assert told[MOST_WARNINGS - 1 :] == [f"UserWarning: {MOST_WARNINGS - 1}", "... (cut here; 900 more warnings)"]


# What a layer says it is -> how that is kept.
CLAIMED = {
    "claims_a_lone_surrogate": {"cache": "caf\\udce9"},
    "claims_under_a_lone_surrogate": {"caf\\udce9": 1},
    "claims_a_large_integer": {"workspace": str(2**70)},
    "claims_under_a_number": {"7": 1},
}


@pytest.mark.parametrize(("fault", "kept"), CLAIMED.items(), ids=CLAIMED)
def test_whatever_a_layer_says_of_itself_can_be_sent(fault: str, kept: dict[str, str | int]) -> None:
    seen = observed(SHAPE, fault)
    assert seen.effective == {**observed(SHAPE).effective, **kept}
    assert decode(encode(Result(observation=seen))) == Result(observation=seen)
    assert verdict(SHAPE, fault).outcome is Outcome.PASSED


def test_a_message_is_sent_whatever_texts_are_in_it() -> None:
    assert decode(encode(Failed(traceback="caf\udce9"))) == Failed(traceback="caf\\udce9")
    seen = msgspec.structs.replace(observed(SHAPE), effective={"caf\udce9": "\udce9"}, warnings=["\ud800"])
    kept = msgspec.structs.replace(seen, effective={"caf\\udce9": "\\udce9"}, warnings=["\\ud800"])
    assert decode(encode(Result(observation=seen))) == Result(observation=kept)


# What is built in place of a layer -> what is said to be found.
BUILT = {
    "nothing_built": "found NoneType without weights, biases, load, forward, effective",
    "a_module_built": "found Linear without weights, biases, load, effective",
    "no_weights_built": "G weights (N, K); found no weight",
    "names_for_weights": "weights as a sequence of tensors; found str among them",
    "a_dict_of_weights": "weights as a sequence of tensors; found str among them",
    "weights_none": "weights as a sequence of tensors; found NoneType",
    "one_tensor_for_weights": "weights as a sequence of tensors; found Tensor",
    "flat_weights": "G weights (N, K); found [(16,), (16,), (16,), (16,), (16,)]",
    "biases_none": "biases as a sequence of tensors; found NoneType",
}


@pytest.mark.parametrize(("fault", "found"), BUILT.items(), ids=BUILT)
def test_what_is_no_layer_is_told_what_a_layer_is(fault: str, found: str) -> None:
    case = SHAPE.replace("out_features=16", "out_features=24")
    (finding,) = verdict(case, fault).findings
    assert finding.outcome is Outcome.RAISED
    assert "in build, exact data: expected a layer, as Layer in gradcheck_cli/compute/provider.py" in finding.why
    assert finding.why.endswith(found)


@every_layout
@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_a_right_layer_is_told_nothing(tail: str, dtype: str) -> None:
    seen = observed(f"{SHAPE}{tail}:dtype={dtype}".replace(":dtype=bf16", ""))
    told = [name for channel in seen.channels for phase in channel.phases for name in phase.disturbed]
    assert (len(seen.channels), told) == (len(FILLS), [])


@pytest.mark.parametrize("fused", ("", ":fuse_wgrad_accumulation=1"))
@pytest.mark.parametrize("fault", ("wgrad_subnormals_flushed", "fprop_subnormals_flushed", "x_subnormals_flushed"))
def test_a_layer_that_flushes_the_small_numbers_of_fp16_is_seen(fault: str, fused: str) -> None:
    assert verdict(f"torch:api=loop{fused}:dtype=fp16:m_splits=uneven", fault).outcome in (
        Outcome.INEXACT,
        Outcome.MISSING,
    )


EMPTY = "torch:api=loop:bias=1:m_splits=5,0,0,0,9"


@pytest.mark.parametrize(
    ("fault", "diagnosis"),
    (
        ("OneGradForTwo", "elements of the grad of bias share memory"),
        ("OverlappingGrad", "elements of the grad of weight share memory"),
        ("SwapsLast", "weight replaced"),
        ("ClearsEarlierDgrad", "dgrad of microbatch 0 changed"),
    ),
)
def test_what_a_layer_leaves_behind_for_others_is_looked_at(fault: str, diagnosis: str) -> None:
    found = verdict(EMPTY, fault)
    assert (found.outcome, [one.diagnosis for one in found.findings]) == (Outcome.UNEXPECTED, [diagnosis])


@pytest.mark.parametrize("case", (EMPTY, "torch:api=loop:single_grouped_weight=1:fuse_wgrad_accumulation=1"))
def test_another_view_of_the_same_main_grad_is_the_same(case: str) -> None:
    assert verdict(case, "ViewsMainGrad").outcome is Outcome.PASSED
