"""Is what was found what the candidate left, at the moment it is said to have left it?"""

from __future__ import annotations

import copy

import faulty_layers
import numpy as np
import pytest
import torch
from faulty_layers import FaultyLayer, faulty, parameters_replaced

from gradcheck_cli.compute.engine import plain
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.observe import Held, attach_main_grad, grad_output, layout, observe
from gradcheck_cli.compute.providers.torch_loop import build
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Role

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
    return [one.experts for _, _, seen in phases for one in seen if (one.role, one.buffer) == (role, buffer)]


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
    attached = attach_main_grad(list(layer.weights), torch.zeros(3, 16, 8))
    assert [one.at - attached[0].at for one in attached] == [0, 4 * 16 * 8, 8 * 16 * 8]


def test_the_data_of_a_case_outlives_its_candidate() -> None:
    inputs = prepare(Case.parse(CASE), "normal", CPU).inputs
    before = inputs.prefill.clone()
    found(f"{CASE}:fuse_wgrad_accumulation=1", "wgrad", "main_grad")
    assert torch.equal(inputs.prefill, before)


def test_an_expanded_grad_output_has_strides_of_zero() -> None:
    case, y = Case.parse(f"{CASE}:grad_output=expanded"), torch.zeros(4, 16)
    assert grad_output(case, torch.ones(4, 16), y).stride() == (0, 0)


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
    held = [one.present for _, _, seen in phases for part in seen if part.buffer == "grad" for one in part.experts]
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
