"""Is what was found what the candidate left, at the moment it is said to have left it?"""

from __future__ import annotations

import copy

import faulty_layers
import numpy as np
import pytest
import torch
from faulty_layers import FaultyLayer, faulty, parameters_replaced
from in_process import observed, verdict

from gradcheck_cli.compute.attached import attach_main_grad, layout
from gradcheck_cli.compute.engine import plain
from gradcheck_cli.compute.found import Held
from gradcheck_cli.compute.handed import grad_output_of
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.lent import ALIGNED, GUARD, changed, guarded
from gradcheck_cli.compute.observe import observe
from gradcheck_cli.compute.providers.torch_loop import build
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, Buffer, Role
from gradcheck_cli.records.verdict import Outcome

CPU = torch.device("cpu")
CASE = "torch:api=loop:bias=1:m_splits=5,0,9:in_features=8:out_features=16"
TAILS = {
    "discrete": "",
    "packed": ":single_grouped_weight=1",
    "fused": ":fuse_wgrad_accumulation=1",
    "packed and fused": ":single_grouped_weight=1:fuse_wgrad_accumulation=1",
}
SUMS: dict[str, tuple[Role, Buffer]] = {"wgrad": ("wgrad", "grad"), "bgrad": ("bgrad", "grad")}


def found(text: str, role: Role, buffer: Buffer) -> list[list[Held]]:
    """What each microbatch left of one role in one buffer, read only after all of them have run."""
    case = Case.parse(text)
    inputs = prepare(Case.parse(CASE), "normal", CPU).inputs
    phases = list(observe(case, build(case, CPU), inputs, "normal"))
    return [one.experts for after in phases for one in after.found if (one.role, one.buffer) == (role, buffer)]


def values(held: list[Held]) -> torch.Tensor:
    return torch.stack([one.tensor for one in held if one.tensor is not None])


@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
def test_what_one_microbatch_left_is_not_altered_by_the_next(tail: str) -> None:
    buffer: Buffer = "main_grad" if "fuse" in tail else "grad"
    first, _ = found(CASE + tail, "wgrad", buffer)
    (alone,) = found(f"{CASE}{tail}:microbatches=1", "wgrad", buffer)
    assert torch.equal(values(first), values(alone))


@pytest.mark.parametrize(("role", "buffer"), tuple(SUMS.values()), ids=SUMS)
def test_gradients_are_left_to_accumulate_over_microbatches(role: Role, buffer: Buffer) -> None:
    first, second = found(CASE, role, buffer)
    assert not torch.equal(values(first), values(second))


@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
def test_every_weight_has_a_main_grad_fused_or_not(tail: str) -> None:
    assert all(one.present for seen in found(CASE + tail, "wgrad", "main_grad") for one in seen)


def test_an_unfused_layer_leaves_the_main_grad_and_the_flag_as_they_were() -> None:
    _, last = found(CASE, "wgrad", "main_grad")
    assert torch.equal(values(last), prepare(Case.parse(CASE), "normal", CPU).inputs.prefill)
    assert {one.added_flag for one in last} == {False}


@pytest.mark.parametrize(("tail", "shape"), (("", (16, 8)), (":single_grouped_weight=1", (3, 16, 8))))
def test_a_buffer_is_described_as_it_is_and_cut_into_experts(tail: str, shape: tuple[int, ...]) -> None:
    (seen,) = found(f"{CASE}{tail}:microbatches=1", "wgrad", "grad")
    assert {(one.shape, one.dtype) for one in seen} == {(shape, "bfloat16")}
    assert [one.tensor.shape for one in seen if one.tensor is not None] == [(16, 8)] * 3


def test_rows_are_cut_by_the_splits_of_their_microbatch() -> None:
    rows = [[len(one.tensor) for one in seen if one.tensor is not None] for seen in found(CASE, "fprop", "output")]
    assert rows == [[5, 0, 9], [7, 4, 0]]


def test_the_main_grads_of_several_weights_lie_in_one_buffer() -> None:
    layer = build(Case.parse(CASE), CPU)
    attached = attach_main_grad(Case.parse(CASE), list(layer.weights), torch.zeros(3, 16, 8))
    assert [one.at - attached[0].at for one in attached] == [0, 4 * 16 * 8, 8 * 16 * 8]


def test_the_data_of_a_case_outlives_its_candidate() -> None:
    inputs = prepare(Case.parse(CASE), "normal", CPU).inputs
    before = inputs.prefill.clone()
    found(f"{CASE}:fuse_wgrad_accumulation=1", "wgrad", "main_grad")
    assert torch.equal(inputs.prefill, before)


def test_an_expanded_grad_output_has_strides_of_zero() -> None:
    case = Case.parse(f"{CASE}:grad_output=expanded")
    given, values = grad_output_of(case, torch.ones(4, 16))
    assert given.tensor.stride() == (0, 0)
    assert torch.equal(given.tensor, values)


def fill_x(y: torch.Tensor, layer: FaultyLayer) -> torch.Tensor:
    layer.x.fill_(1e30)
    return y


def zero_main_grad(weight: torch.Tensor, *_: object) -> None:
    weight.main_grad.zero_()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ("weight", "bias", "x", "prefill"))
def test_no_layer_can_reach_the_data_that_the_reference_is_made_of(name: str) -> None:
    case = Case.parse(f"{CASE}:fuse_wgrad_accumulation=1")
    inputs = draw(case, "normal", CPU)
    before = copy.deepcopy(inputs)
    layer = faulty(loaded=lambda given: given.fill_(1e30), fprop=fill_x, deliver=zero_main_grad)(case, CPU)
    list(observe(case, layer, inputs, "normal"))
    assert all(torch.equal(*both) for both in zip(getattr(inputs, name), getattr(before, name), strict=True))


def test_gradients_are_read_from_the_parameters_that_were_there_after_loading() -> None:
    case = Case.parse(f"{CASE}:microbatches=1")
    phases = list(observe(case, parameters_replaced(case, CPU), draw(case, "normal", CPU), "normal"))
    held = [one.present for after in phases for part in after.found if part.buffer == "grad" for one in part.experts]
    assert held == [False] * 6


@pytest.mark.parametrize(("fault", "told"), (("one_weight_in_fp32", "bf16 and fp32"), ("none", "bf16")))
def test_a_layout_names_every_dtype_among_the_parameters(fault: str, told: str) -> None:
    assert layout(getattr(faulty_layers, fault)(Case.parse(CASE), CPU))["dtype"] == told


@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
def test_a_layout_is_read_from_the_parameters(tail: str) -> None:
    case = Case.parse(CASE + tail)
    assert layout(build(case, CPU)).items() <= case.axes().items()


@pytest.mark.parametrize("found", (True, np.bool_(1), np.int64(1), torch.ones((), dtype=torch.bool)), ids=str)
def test_a_one_of_any_type_is_the_one_that_was_asked(found: object) -> None:
    assert plain(found) == 1
    assert type(plain(found)) is int


# Expert 2 has tokens in no microbatch, 1 only in the second, 3 only in the first.
SHAPE = "torch:api=loop:bias=1:m_splits=5,0,0,9,7:in_features=16:out_features=24"
# A layer that writes where nobody asked it to -> what is said to be changed, its slot, and what it is called.
WRITES = {
    "writes_x": ("x", "case", "x changed"),
    "writes_grad_output": ("grad_output", "case", "grad_output changed"),
    "writes_a_weight": ("weight[3]", "weight[3]", "weight changed"),
    "writes_a_bias": ("bias[1]", "bias[1]", "bias changed"),
    "writes_past_main_grad": ("guard after main_grad", "case", "written after main_grad"),
    "adds_past_main_grad": ("guard after main_grad", "case", "written after main_grad"),
    "writes_before_main_grad": ("guard before main_grad", "case", "written before main_grad"),
    "writes_past_x": ("guard after x", "case", "written after x"),
}


@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
@pytest.mark.parametrize("fault", WRITES)
def test_a_layer_that_writes_where_nobody_asked_is_unexpected(fault: str, tail: str) -> None:
    name, slot, diagnosis = WRITES[fault]
    found = verdict(SHAPE + tail, fault)
    (told,) = [finding for finding in found.findings if finding.outcome is Outcome.UNEXPECTED]
    assert (found.outcome, told.slot, told.diagnosis) == (Outcome.UNEXPECTED, slot, diagnosis)
    assert told.why.startswith(f"expected {name.replace('guard', 'the memory')} to ")
    assert told.why.endswith("(after the backward of microbatch 0, exact data)")


@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
@pytest.mark.parametrize("fault", WRITES)
def test_what_was_written_is_seen_in_every_channel_and_nothing_else_is(fault: str, tail: str) -> None:
    channels = observed(SHAPE + tail, fault).channels
    seen = [{name for phase in channel.phases for name in phase.disturbed} for channel in channels]
    assert seen == [{WRITES[fault][0]}] * len(FILLS)


@pytest.mark.parametrize("grad_output", ("random", "expanded"))
@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("tail", tuple(TAILS.values()), ids=TAILS)
def test_a_right_layer_disturbs_nothing(tail: str, dtype: str, grad_output: str) -> None:
    case = str(Case.parse(f"{SHAPE}{tail}:dtype={dtype}:grad_output={grad_output}"))
    assert [phase.disturbed for channel in observed(case).channels for phase in channel.phases if phase.disturbed] == []


def test_the_experts_of_a_changed_weight_are_named() -> None:
    (told,) = [one for one in verdict(SHAPE, "writes_a_weight").findings if one.slot == "weight[3]"]
    assert told.experts == [3]


@pytest.mark.parametrize("shape", ((3, 5), (0, 8), (2, 16, 24), ()))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_a_guarded_copy_is_aligned_contiguous_and_a_tensor_of_its_own(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = torch.rand(shape, dtype=dtype)
    copy = guarded("x", values)
    assert torch.equal(copy.tensor, values)
    assert (copy.tensor.is_contiguous(), copy.tensor._is_view()) == (True, False)
    assert (copy.around.data_ptr() + copy.start) % ALIGNED == 0
    assert not values.numel() or copy.tensor.data_ptr() == copy.around.data_ptr() + copy.start


@pytest.mark.parametrize("at", (-1, -GUARD, 60, 59 + GUARD))
@pytest.mark.parametrize("value", (0, 0xFF, 0x71))
def test_a_byte_written_anywhere_in_a_guard_is_seen(at: int, value: int) -> None:
    copy = guarded("x", torch.rand(3, 5))
    copy.around[copy.start + at] = value
    assert changed(copy.pairs()) == [f"guard {'before' if at < 0 else 'after'} x"]


def test_a_sign_of_zero_is_a_bit_and_nan_is_equal_to_itself() -> None:
    zeros, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert changed([("zero", -zeros, zeros), ("nan", nan, nan.clone())]) == ["zero"]


def test_memory_that_was_given_away_is_changed_and_not_read() -> None:
    held = torch.rand(4096)
    given = held.clone()
    held.untyped_storage().resize_(0)
    assert changed([("x", held, given)]) == ["x"]


# A layer whose buffers cannot be read like any other's -> its outcome, fused and not, and words of the finding.
UNREADABLE = {
    "sparse_main_grad": ((Outcome.UNEXPECTED, Outcome.PROTOCOL), "found {} float32 (sparse_coo)"),
    "meta_main_grad": ((Outcome.UNEXPECTED, Outcome.PROTOCOL), "found {} float32 on meta"),
    "complex_main_grad": ((Outcome.UNEXPECTED, Outcome.PROTOCOL), "found {} complex64"),
    "sparse_grad": ((Outcome.PROTOCOL, Outcome.MISSING), "bfloat16 (sparse_coo)"),
    "flag_of_two_elements": ((Outcome.RAISED,) * 2, "reading the gradients after the backward of microbatch 0"),
    "weights_not_to_be_read": (
        (Outcome.RAISED,) * 2,
        "reading the parameters after loading, exact data: these weights",
    ),
    "one_weight_lost": ((Outcome.RAISED,) * 2, "expected 5 weights or a packed one; after loading there are"),
}


@pytest.mark.parametrize("packed", ("", ":single_grouped_weight=1"), ids=("discrete", "packed"))
@pytest.mark.parametrize("fused", (0, 1), ids=("unfused", "fused"))
@pytest.mark.parametrize("fault", UNREADABLE)
def test_what_cannot_be_read_is_the_candidates_own_failure(fault: str, fused: int, packed: str) -> None:
    outcomes, _ = UNREADABLE[fault]
    assert verdict(f"{SHAPE}{packed}:fuse_wgrad_accumulation={fused}", fault).outcome is outcomes[fused]


@pytest.mark.parametrize(("fault", "fused"), tuple((fault, int(fault != "sparse_grad")) for fault in UNREADABLE))
def test_what_cannot_be_read_is_told_in_words(fault: str, fused: int) -> None:
    words = UNREADABLE[fault][1].format((24, 16))
    findings = verdict(f"{SHAPE}:fuse_wgrad_accumulation={fused}", fault).findings
    assert any(words in finding.why for finding in findings), findings
