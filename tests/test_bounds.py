"""Are the coefficients of a bound those of the layer on trial?"""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from gradcheck_cli import plugins
from gradcheck_cli.compute.contents import stored
from gradcheck_cli.compute.products import gamma
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.judge.bounds import LAMBDA, TF32_LAMBDA, rounding
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.roles import CHAIN, OF_A_CHAIN
from gradcheck_cli.records.rounding import Rounding

U = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
UNFUSED, FUSED = "", ":fuse_wgrad_accumulation=1"
TE, TORCH = "te:api=op", "torch:api=loop"
# Who builds it, fused or not -> whether each wgrad is rounded before it is added, and what its buffer rounds to.
ADDED = {
    "te adds in its GEMM": (TE + FUSED, False, U["fp32"]),
    "te unfused adds in autograd": (TE + UNFUSED, True, U["bf16"]),
    "torch adds in a hook": (TORCH + FUSED, True, U["fp32"]),
    "torch unfused adds in autograd": (TORCH + UNFUSED, True, U["bf16"]),
}


def of(case: str, role: Role = "wgrad") -> Rounding:
    """How a role of a case is rounded; where only a chain has it, of the same candidate's chain."""
    parsed = Case.parse(case)
    if role in OF_A_CHAIN:
        parsed = msgspec.structs.replace(parsed, api=CHAIN)
    return rounding(parsed, plugins.candidate(parsed.provider))[role]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("dtype", U)
def test_results_are_stored_in_the_dtype_and_accumulated_in_fp32(dtype: str, role: Role) -> None:
    found = of(f"{TORCH}:dtype={dtype}", role)
    assert (found.store, found.accumulate, found.lambda_) == (U[dtype], U["fp32"], LAMBDA)


@pytest.mark.parametrize(("case", "first", "buffer"), tuple(ADDED.values()), ids=ADDED)
def test_a_wgrad_is_added_as_its_candidate_adds_it(case: str, first: bool, buffer: float) -> None:  # noqa: FBT001
    assert (of(case).rounds_before_adding, of(case).buffer) == (first, buffer)


def test_a_bgrad_never_goes_through_a_main_grad() -> None:
    assert of(TE + FUSED, "bgrad").buffer == U["bf16"]


@pytest.mark.parametrize("role", ROLES)
def test_only_products_of_fp32_operands_are_granted_tf32(role: Role) -> None:
    granted = [bool(of(case, role).operands) for case in (f"{TE}:dtype=fp32", TE, f"{TORCH}:dtype=fp32")]
    assert granted == [role != "bgrad", False, False]


FP8 = 2.0**-14
# A recipe and a role -> the accumulator of FP8 tensor cores, and how many products meet in it.
NARROW: dict[tuple[str, Role], tuple[float, int]] = {
    ("DelayedScaling", "fprop"): (FP8, 0),
    ("Float8CurrentScaling", "fprop"): (FP8, 0),
    ("Float8CurrentScaling", "dgrad"): (FP8, 128),
    ("DelayedScaling", "wgrad"): (FP8, 128),
    ("Float8BlockScaling", "fprop"): (FP8, 128),
    ("MXFP8", "fprop"): (0.0, 0),
    ("Float8BlockScaling", "bgrad"): (0.0, 0),
}


@pytest.mark.parametrize(("recipe", "role"), NARROW)
def test_fp8_tensor_cores_are_granted_what_their_accumulator_lacks(recipe: str, role: Role) -> None:
    found = of(f"{TE}:recipe={recipe}", role)
    assert (found.narrow, found.promoted) == NARROW[recipe, role]
    assert of(f"{TORCH}:recipe={recipe}", role).narrow == 0


def test_what_is_promoted_stops_to_lose_more() -> None:
    narrow = {n: gamma(of(f"{TE}:recipe=Float8BlockScaling"), n) for n in (64.0, 128.0, 1024.0)}
    plain = {n: gamma(of(TE), n) for n in narrow}
    lost = {n: float(narrow[n] - plain[n]) for n in narrow}
    assert lost == pytest.approx({64.0: FP8 * 8, 128.0: FP8 * 128**0.5, 1024.0: FP8 * 128**0.5})


@pytest.mark.parametrize("role", ROLES)
def test_only_a_scale_that_is_a_quotient_rounds_what_is_dequantised(role: Role) -> None:
    granted = [of(f"{TORCH}:recipe={one}", role).operands for one in ("Float8CurrentScaling", "MXFP8", "none")]
    expected = 0.0 if role == "bgrad" else LAMBDA * math.sqrt(2) * U["fp32"]
    assert granted == [expected, 0.0, 0.0]


@pytest.mark.parametrize("role", ROLES)
def test_errors_have_a_mean_of_zero_unless_equal_terms_are_summed(role: Role) -> None:
    assert [of(f"{TORCH}{tail}", role).linear for tail in ("", ":grad_output=expanded")] == [False, role == "bgrad"]


def test_lambda_leaves_the_theorem_less_than_a_failure_in_a_thousand_and_grants_no_more() -> None:
    assert 1e-4 < 2 * math.exp(-(LAMBDA**2) / 2) < 1e-3


# What is asked of te beside api and dtype, and a role -> the terms of its operands: fp32's, the dtype's own and TF32's.
INVERSE, OWN, ROUNDED = LAMBDA * math.sqrt(2) * 2.0**-24, LAMBDA * 2.0**-8, 2 * TF32_LAMBDA * 2.0**-11
CURRENT = "recipe=Float8CurrentScaling"
OPERANDS: dict[tuple[str, Role], float] = {
    (f"dtype=bf16:{CURRENT}", "dgrad"): INVERSE,
    (f"dtype=bf16:{CURRENT}:backward_override=dequantized", "fprop"): INVERSE,
    (f"dtype=bf16:{CURRENT}:backward_override=dequantized", "dgrad"): INVERSE + OWN,
    (f"dtype=bf16:{CURRENT}:backward_override=dequantized", "wgrad"): INVERSE + OWN,
    (f"dtype=bf16:{CURRENT}:backward_override=high_precision", "wgrad"): INVERSE,
    (f"dtype=bf16:{CURRENT}:backward_override=high_precision:quantized_model_init=1", "dgrad"): INVERSE + OWN,
    (f"dtype=fp32:{CURRENT}:backward_override=high_precision", "wgrad"): INVERSE + ROUNDED,
    (f"dtype=fp32:{CURRENT}:backward_override=high_precision", "fprop"): INVERSE,
    (f"dtype=fp32:{CURRENT}:backward_override=high_precision", "bgrad"): 0.0,
}


@pytest.mark.parametrize(("asked", "role"), OPERANDS)
def test_an_override_leaves_the_backward_what_its_dtype_is_granted(asked: str, role: Role) -> None:
    assert of(f"{TE}:{asked}", role).operands == pytest.approx(OPERANDS[asked, role])
    overridden = "override" in asked and role != "fprop"
    assert (of(f"{TE}:{asked}", role).narrow > 0) is (role != "bgrad" and not overridden)


@pytest.mark.parametrize(("dtype", "granted"), (("fp32", 2.0**-8), ("bf16", 0.0), ("fp16", 0.0)))
def test_only_a_bias_in_fp32_is_rounded_for_an_fp8_gemm(dtype: str, granted: float) -> None:
    case = f"dtype={dtype}:bias=1"
    assert of(f"{TE}:{case}:{CURRENT}", "fprop").bias == granted
    assert of(f"{TE}:{case}", "fprop").bias == of(f"{TORCH}:{case}:{CURRENT}", "fprop").bias == 0


def test_what_a_bias_is_rounded_by_is_granted_to_each_row_of_its_expert() -> None:
    case = Case.parse(f"{TORCH}:dtype=fp32:{CURRENT}:bias=1:m_splits=16,32:in_features=16:out_features=16")
    reference, own = prepare(case, "normal", torch.device("cpu")), of(str(case), "fprop")
    rounded = msgspec.structs.replace(own, bias=2.0**-8)
    plain, granted = (stored(case, reference, one, "fprop", 0).fixed for one in (own, rounded))
    bias = reference.inputs.bias
    assert bias is not None
    assert plain is not None
    assert granted is not None
    rows = bias.double().abs().repeat_interleave(torch.tensor([16, 32]), dim=0)
    assert torch.allclose(granted - plain, 2.0**-8 * rows, rtol=1e-9)
    assert rows.min() > 0
