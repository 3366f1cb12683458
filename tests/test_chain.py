"""Is a chain of two layers judged as strictly as its own roundings allow, and each of its gradients by its own name?"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Literal

import msgspec
import pytest
import torch
from in_process import CPU, engine, verdict
from test_mutants import judged as proved

from gradcheck_cli import pipeline
from gradcheck_cli.compute.chain import Near, bent, carried, half_spacing, multiplied
from gradcheck_cli.compute.contents import contents
from gradcheck_cli.compute.observe import observe
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers import torch_op_mlp
from gradcheck_cli.compute.reference import NO_INTEGERS, prepare
from gradcheck_cli.judge import contract
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import Observation, Role
from gradcheck_cli.records.verdict import Outcome, Verdict

CHAIN = "torch:api=op_mlp:in_features=16:out_features=32"
SIX = "m_splits=empty_middle:num_gemms=4:tokens_per_expert=8"
ROLES: tuple[Role, ...] = ("fprop", "dgrad", "wgrad", "wgrad_fc2", "pgrad")
DEVICE = torch.device("cpu")

RIGHT = [
    f"{CHAIN}:dtype={dtype}:fuse_wgrad={fused}:single_grouped_weight={packed}:{SIX}"
    for dtype, fused, packed in itertools.product(("bf16", "fp16", "fp32"), (0, 1), (0, 1))
] + [
    f"{CHAIN}:m_splits=all_empty:microbatches=1",
    f"{CHAIN}:num_gemms=1:microbatches=3:grad_output=expanded",
    f"{CHAIN}:m_splits=hot:tokens_per_expert=300:grad_output=expanded:dtype=fp32",
    f"{CHAIN}:fuse_wgrad=1:main_grad_dtype=bf16:m_splits=uneven",
    f"{CHAIN}:fuse_wgrad=1:overwrite_main_grad=some",
    f"{CHAIN}:main_grad=absent",
    # A gate of -97, whose sigma is below what fp32 holds.
    "torch:api=op_mlp:dtype=fp32:m_splits=empty_last:num_gemms=6:tokens_per_expert=1:in_features=32:out_features=112:microbatches=1:seed=254913895",
]  # fmt: skip


@cache
def seen(case: str, fault: str) -> Observation:
    job = msgspec.structs.replace(pipeline.job(Case.parse(case)), target=f"faulty_chains:{fault}")
    return engine(job.target).run(job)


def judged(case: str, fault: str) -> Verdict:
    return conclude(Case.parse(case), seen(case, fault), CPU)


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_chain_passes_on_random_data_alone(case: str) -> None:
    found = verdict(case)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert set(found.roles) == set(ROLES)
    assert found.channels == {"exact": NO_INTEGERS, "range": NO_INTEGERS, "normal": "judged"}
    assert any("random data alone" in note for note in found.notes)


# What is wrong between or in the layers -> the gradients that show it, and as what; the others are right.
FAULTS: dict[str, dict[Role, Outcome]] = {
    "clamped": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "units_clamped": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "probs_clamped": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "fc1_lost": {"wgrad": Outcome.MISSING},
    "fc2_lost": {"wgrad_fc2": Outcome.MISSING},
    "fc2_of_others": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "gates_swapped": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "gelu": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "overflowing": dict.fromkeys(ROLES, Outcome.NONFINITE),
    "probs_detached": {"pgrad": Outcome.MISSING},
    "probs_squared": dict.fromkeys(ROLES, Outcome.INACCURATE),
    "straight_through": {"dgrad": Outcome.INACCURATE, "wgrad": Outcome.INACCURATE},
    "unscaled_backward": {
        "dgrad": Outcome.INACCURATE, "wgrad": Outcome.INACCURATE,
        "wgrad_fc2": Outcome.PASSED, "pgrad": Outcome.MISSING,
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", ("", ":fuse_wgrad=1", ":single_grouped_weight=1"), ids=("plain", "fused", "packed"))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_in_the_gradients_that_have_it_and_in_no_other(fault: str, layout: str) -> None:
    assert judged(CHAIN + layout, fault).roles == dict.fromkeys(ROLES, Outcome.PASSED) | FAULTS[fault]


LAYERS = {"fc1_lost": "wgrad[", "fc2_lost": "wgrad_fc2[", "probs_detached": "pgrad["}


@pytest.mark.parametrize("fault", LAYERS)
def test_what_is_missing_is_named_by_its_layer(fault: str) -> None:
    (only,) = judged(f"{CHAIN}:single_grouped_weight=1:fuse_wgrad=1", fault).findings
    assert (only.outcome, only.slot.startswith(LAYERS[fault])) == (Outcome.MISSING, True)
    where = "probs.grad is None" if fault == "probs_detached" else "main_grad still holds its prefill"
    assert where in only.why


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_fewer_digits_between_the_layers_are_no_roundings_of_a_right_path(dtype: str) -> None:
    assert set(judged(f"{CHAIN}:dtype={dtype}", "in_fewer_digits").roles.values()) == {Outcome.INACCURATE}


def test_a_chain_without_a_second_layer_is_told_what_was_expected() -> None:
    found = judged(CHAIN, "without_second_weights")
    assert found.worst is not None
    assert found.worst.outcome is Outcome.RAISED
    assert "found LoopLayer without weights_fc2, load_fc2, scale_by" in found.worst.why


def test_the_reference_is_the_derivative_of_the_chain() -> None:
    case = Case.parse(f"{CHAIN}:{SIX}:dtype=fp32")
    reference = prepare(case, "normal", DEVICE)
    inputs, splits = reference.inputs, list(case.splits(1))
    assert inputs.weight_fc2 is not None
    x, s, w1, w2 = (
        tensor.double().requires_grad_() for tensor in (inputs.x[1], inputs.probs[1], inputs.weight, inputs.weight_fc2)
    )
    y = []
    for rows, own, first, second in zip(x.split(splits), s.split(splits), w1, w2, strict=True):
        a, b = (rows @ first.T).chunk(2, 1)
        y.append(own[:, None] * torch.nn.functional.silu(a) * b @ second.T)
    torch.cat(y).backward(inputs.grad_output[1].double())
    right: dict[Role, torch.Tensor | None]
    right = {"fprop": torch.cat(y), "dgrad": x.grad, "wgrad": w1.grad, "wgrad_fc2": w2.grad, "pgrad": s.grad}
    for role, expected in right.items():
        assert expected is not None
        torch.testing.assert_close(reference.roles[1][role].value, expected.reshape_as(reference.roles[1][role].value))


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_without_what_is_carried_a_right_chain_would_be_out_of_bound(dtype: str) -> None:
    case = Case.parse(f"{CHAIN}:dtype={dtype}:num_gemms=2:tokens_per_expert=64:microbatches=1")
    reference, rounding = prepare(case, "normal", DEVICE), pipeline.job(case).rounding
    phases = list(observe(case, torch_op_mlp.build(case, DEVICE), reference.inputs, "normal"))
    every = {one.role: one for phase in phases for one in phase.found if one.buffer != "main_grad"}
    for role in ROLES:
        tensors = [held.tensor for held in every[role].experts if held.tensor is not None]
        (content,) = contents(case, reference, rounding[role], role, "grad", 0).values()
        found = torch.cat(tensors).double().reshape_as(content.value)
        assert content.fixed is not None
        assert content.free is not None
        lambda_ = rounding[role].lambda_
        brought = lambda_ * carried(case, reference.inputs, 0, role, rounding[role])
        whole = content.fixed + lambda_ * content.free
        off = (found - content.value).abs()
        assert (off / (whole - brought)).max() > 1
        assert 0.1 < (off / whole).max() < 1  # and no wider than that


def test_a_product_is_off_by_no_more_than_its_factors_may_make_it() -> None:
    generator = torch.Generator().manual_seed(0)
    value, off = (torch.rand(2, 3, 1000, generator=generator, dtype=torch.float64) for _ in range(2))
    factors = [Near(v, e) for v, e in zip(value[0], 0.1 * off[0], strict=True)]
    one_sided = (value[0] + 0.1 * off[0]).prod(0) - value[0].prod(0)
    found = multiplied(factors, 1.0)
    assert torch.equal(found.value, value[0].prod(0))
    # All errors at once, at lambda: no further than first orders in a row and the whole of the rest.
    assert (one_sided <= 3**0.5 * found.deviation).all()


# In which some fault changes a right gradient by no more than roundings do.
SMALL = (
    "m_splits=181,195:in_features=1:out_features=2:microbatches=1:seed=297699221",
    "m_splits=0,0,12:in_features=1:out_features=5:seed=300959953",
    "m_splits=15,1,39,0:in_features=2:out_features=7:microbatches=3:fuse_wgrad=1:grad_output=expanded:seed=489078108",
)


@pytest.mark.parametrize("small", SMALL)
def test_a_fault_that_drowns_in_a_chains_roundings_is_not_put_into_it(small: str) -> None:
    found = proved(f"torch:api=op_mlp:{small}")
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_a_bound_that_is_too_wide_is_still_shown_to_be() -> None:
    case = Case.parse("torch:api=op_mlp:num_gemms=2")
    job = pipeline.job(case, "fast")
    wide = {role: msgspec.structs.replace(one, accumulate=1.0) for role, one in job.rounding.items()}
    found = conclude(case, engine(job.target).run(msgspec.structs.replace(job, rounding=wide)), CPU)
    assert found.outcome is Outcome.VACUOUS


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_four_output_roundings_are_seen_in_each_gradient_of_a_chain(dtype: Literal["bf16", "fp16"]) -> None:
    proof = proved(f"torch:api=op_mlp:dtype={dtype}").mutants
    assert proof is not None
    assert proof.smallest_epsilon is not None
    assert proof.smallest_epsilon <= 4 * FORMATS[dtype].unit_roundoff


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_rounding_to_nearest_errs_by_half_the_spacing_at_most(dtype: Literal["bf16", "fp16"]) -> None:
    rounding = pipeline.job(Case.parse(f"{CHAIN}:dtype={dtype}")).rounding["fprop"]
    value = torch.logspace(-12, 4, 20001, 2, dtype=torch.float64)
    error, most = (value.to(DTYPES[dtype]).double() - value).abs(), half_spacing(value, rounding)
    assert (error <= most).all()
    assert (most - rounding.floor <= rounding.store * value).all()
    assert (error / most)[value >= 1].max() > 0.99
    assert half_spacing(torch.zeros(1), rounding).item() == rounding.floor


def test_silu_bends_nowhere_more_than_its_bound_says() -> None:
    a = torch.linspace(-40, 40, 8001, dtype=torch.float64)
    sigma = torch.sigmoid(a)
    second = (sigma * (1 - sigma) * (2 + a * (1 - 2 * sigma))).abs()
    for off in (0.0, 0.5, 3.0):
        most = bent(a, torch.full_like(a, off))
        steps = round(off / 0.01)
        for shift in {-steps, 0, steps}:
            there = second.roll(shift)[steps : len(a) - steps]
            assert (there <= most[steps : len(a) - steps] + 1e-13).all()
    assert bent(torch.tensor(32.0), torch.tensor(1.0)) < 1e-11


KNOBS = {
    "bias=1": "chain-has-no-bias",
    "delay_wgrad_compute=1": "chain-has-no-backward-dw",
    "frozen_weights=all": "chain-learns-everything",
    "padded_tail=zero": "chain-has-no-tail",
    "input_layout=offset": "chain-input-is-contiguous",
    "path=native": "chain-takes-no-such-argument",
    "recipe=MXFP8": "chain-has-no-recipe",
}


@pytest.mark.parametrize("knob", KNOBS)
def test_what_no_chain_is_tried_with_is_left_out_with_the_reason(knob: str) -> None:
    left_out = matrix.excluded(Case.parse(f"{CHAIN}:{knob}"))
    assert left_out is not None
    assert left_out.constraint == KNOBS[knob]
    assert knob.partition("=")[0] in left_out.why


def test_the_contract_names_both_layers_and_the_probabilities() -> None:
    said = "\n".join(contract.in_words(Case.parse(f"{CHAIN}:fuse_wgrad=1:single_grouped_weight=1:num_gemms=2")))
    assert "wgrad: main_grad of the packed weight, (2, 64, 16) float32" in said
    assert "wgrad_fc2: main_grad of the packed weight, (2, 16, 32) float32" in said
    assert "pgrad: probs.grad, (sum(m_splits),) bfloat16" in said
