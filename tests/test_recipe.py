"""Is a quantised layer judged without tolerance? The recipes, on data that loses nothing by them."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import CPU, engine, observed, seen_by, verdict

from gradcheck_cli import pipeline
from gradcheck_cli.compute import inputs, quantised, reference
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.providers.torch_quantised import E4M3, E5M2, Quantiser
from gradcheck_cli.compute.quantised import SUMMED
from gradcheck_cli.judge import contract
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.capability import closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.recipe import AMAX, RECIPES
from gradcheck_cli.records.verdict import Outcome

LOOP = "torch:api=loop:m_splits=32,0,64:in_features=256:out_features=48:microbatches=3"
KNOWN = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8")
QUOTIENTS = KNOWN[:2]
TAILS = ("", ":fuse_wgrad=1:bias=1", ":single_grouped_weight=1:dtype=fp16", ":fuse_wgrad=1:dtype=fp32")
DEVICE = torch.device("cpu")


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("recipe", KNOWN)
def test_a_right_quantised_layer_differs_in_no_element_over_three_steps(recipe: str, tail: str) -> None:
    case = Case.parse(f"{LOOP}:recipe={recipe}{tail}")
    job = pipeline.job(case, "all")
    found = conclude(case, engine(job.target).run(job), CPU)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.channels["exact"] == "judged"
    assert found.channels["normal"] == "judged"
    assert found.mutants is not None
    assert found.mutants.killed == found.mutants.of > 0


@pytest.mark.parametrize("tail", ("", ":bias=1:fuse_wgrad=1"))
@pytest.mark.parametrize("recipe", QUOTIENTS)
def test_a_uniform_grad_output_is_judged_on_random_data_of_plain_torch(recipe: str, tail: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}:grad_output=expanded{tail}")
    assert (found.outcome, found.channels["normal"]) == (Outcome.PASSED, "judged")


@pytest.mark.parametrize("override", ("high_precision", "dequantized"))
@pytest.mark.parametrize("recipe", KNOWN[1:])
def test_a_backward_of_other_operands_is_as_right(recipe: str, override: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}:backward_override={override}")
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_an_override_that_was_not_followed_is_another_case() -> None:
    found = verdict(f"{LOOP}:recipe=MXFP8:backward_override=high_precision", "ForgetsTheOverride")
    assert found.outcome is Outcome.NOT_THE_CASE
    assert "backward_override=high_precision, and backward_override=none ran" in found.findings[0].why


@given(
    recipe=st.sampled_from(KNOWN),
    dtype=st.sampled_from(("bf16", "fp16", "fp32")),
    m_splits=st.sampled_from(("32,0,64", "16,48,16", "17,0,8", "1,130", "3,200")),
    features=st.tuples(st.integers(1, 300), st.integers(1, 150)),
    flags=st.tuples(*[st.booleans()] * 3),
    microbatches=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=20, deadline=None)
def test_no_right_quantised_layer_fails(  # noqa: PLR0913, PLR0917  what a case is made of
    recipe: str,
    dtype: str,
    m_splits: str,
    features: tuple[int, int],
    flags: tuple[bool, ...],
    microbatches: int,
    seed: int,
) -> None:
    bias, fuse, packed = map(int, flags)
    case = Case.parse(
        f"torch:api=loop:recipe={recipe}:dtype={dtype}:m_splits={m_splits}:in_features={features[0]}:bias={bias}:"
        f"out_features={features[1]}:microbatches={microbatches}:seed={seed}:fuse_wgrad={fuse}:"
        f"single_grouped_weight={packed}"
    )
    job = pipeline.job(case)
    observation = seen_by(engine(job.target).run(job), "normal")
    assert conclude(case, observation, CPU).outcome in {Outcome.PASSED, Outcome.VACUOUS}


# A layer that is wrong in how it quantises -> the recipes of which the data shows it.
FAULTS = {
    "OneUnitInFP8": KNOWN,
    "ScaleOfAnother": QUOTIENTS,
    "ScaleTooLarge": QUOTIENTS,
    "ScalesOfOtherBlocks": KNOWN[2:],
    "RangeForDigits": KNOWN,
    "LargestOfAllButTheLastRow": QUOTIENTS,
    "LargestOfAllButTheLastColumn": QUOTIENTS,
    "LargestOfAllButTheFirstRow": QUOTIENTS,
}


@pytest.mark.parametrize(("fault", "recipe"), [(fault, recipe) for fault, of in FAULTS.items() for recipe in of])
def test_a_wrong_quantisation_is_seen(fault: str, recipe: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}", fault)
    assert found.outcome is Outcome.INEXACT, found.findings


# Wrong in a way that loses nothing of integers -> the recipes in which it is wrong.
ONLY_ON_RANDOM_DATA = {
    "RowsForColumns": KNOWN[2:],
    "ColumnsForRows": KNOWN[2:],
    "DigitsForRange": QUOTIENTS,
    "RawWeightInDgrad": KNOWN,
    "HalfTheScale": KNOWN[1:],
    "NoSubnormals": KNOWN,
    "ScaleOfAll": QUOTIENTS[1:],
    "ScaleOfNow": QUOTIENTS[:1],
    "ScaleOfTheLastStep": QUOTIENTS[:1],
}


@pytest.mark.parametrize(
    ("fault", "recipe"), [(fault, recipe) for fault, of in ONLY_ON_RANDOM_DATA.items() for recipe in of]
)
def test_what_integers_do_not_show_of_a_quantisation_random_data_does(fault: str, recipe: str) -> None:
    case = f"{LOOP.replace('microbatches=3', 'microbatches=4')}:recipe={recipe}"
    assert verdict(case, fault, only="exact").outcome is Outcome.PASSED
    assert verdict(case, fault).outcome is Outcome.INACCURATE


@pytest.mark.parametrize("tail", ("", ":fuse_wgrad=1:dtype=fp32"))
@pytest.mark.parametrize("recipe", KNOWN)
def test_a_backward_without_quantisation_is_called_so(recipe: str, tail: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}{tail}", "RawBackward")
    assert {(one.role, one.diagnosis) for one in found.findings} == {
        ("dgrad", "operands not quantised"),
        ("wgrad", "operands not quantised"),
    }


@pytest.mark.parametrize("recipe", KNOWN)
def test_an_expert_whose_tokens_are_all_zero_has_a_scale(recipe: str) -> None:
    case = f"{LOOP}:recipe={recipe}:bias=1:dtype=fp32"
    assert verdict(case, only="range").outcome is Outcome.PASSED
    found = verdict(case, "NothingByNothing", only="range")
    assert {(one.role, one.outcome) for one in found.findings} == {
        ("fprop", Outcome.NONFINITE),
        ("wgrad", Outcome.NONFINITE),
    }


# Tokens of each expert -> the gradients of a layer that divides by the largest of nothing: of grad_output alone, and of
# a weight as well.
OF_NOTHING = {"16,48,32": {"dgrad", "wgrad"}, "16,48,0,32,64": {"fprop", "dgrad", "wgrad"}}


@pytest.mark.parametrize("m_splits", OF_NOTHING)
@pytest.mark.parametrize("recipe", KNOWN)
def test_an_expert_whose_grad_output_or_weight_is_all_zero_has_a_scale(recipe: str, m_splits: str) -> None:
    case = Case.parse(f"torch:api=loop:m_splits={m_splits}:in_features=256:out_features=48:recipe={recipe}")
    job = pipeline.job(case, "all")
    right = conclude(case, engine(job.target).run(job), CPU)
    assert (right.outcome, right.findings, right.channels["range"]) == (Outcome.PASSED, [], "judged")
    found = verdict(str(case), "NothingByNothing")
    assert {(one.role, one.outcome) for one in found.findings} == {
        (role, Outcome.NONFINITE) for role in OF_NOTHING[m_splits]
    }
    assert verdict(str(case), "NothingByNothing", only="exact").outcome is Outcome.PASSED


def test_what_is_wrong_beside_an_expert_of_zeros_is_all_that_is_said() -> None:
    case = "torch:api=loop:m_splits=16,48,0,32,64:in_features=256:out_features=48:recipe=Float8CurrentScaling"
    found = verdict(case, "RangeForDigits")
    assert found.outcome is Outcome.INEXACT
    assert Outcome.VACUOUS not in {one.outcome for one in found.findings}


@pytest.mark.parametrize("recipe", KNOWN)
def test_gradients_that_are_subnormal_in_fp8_may_not_be_lost(recipe: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}", "NoSubnormalGradients")
    assert {one.role for one in found.findings} == {"dgrad", "wgrad"}


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("recipe", KNOWN)
def test_what_lies_between_two_numbers_goes_to_the_even_one(recipe: str, dtype: str) -> None:
    found = verdict(f"{LOOP}:recipe={recipe}:dtype={dtype}", "TiesAwayFromZero")
    assert found.outcome is Outcome.INACCURATE


@pytest.mark.parametrize("kind", ("x", "weight", "grad_output"))
@pytest.mark.parametrize("recipe", KNOWN[1:])
def test_half_the_scale_of_one_operand_is_seen_in_each_product_of_it(recipe: str, kind: str) -> None:
    case = "torch:api=loop:m_splits=128,64,128:in_features=256:out_features=128:microbatches=2"
    found = verdict(f"{case}:recipe={recipe}", f"HalfTheScaleOf_{kind}")
    assert {one.role for one in found.findings} == {role for role, of in SUMMED.items() if kind in of}


@pytest.mark.parametrize("recipe", KNOWN)
def test_random_data_of_te_is_judged_where_its_sums_are_calibrated(recipe: str) -> None:
    case = Case.parse(f"{LOOP.replace('torch:api=loop', 'te:api=op')}:recipe={recipe}")
    said = reference.prepare(case, "normal", DEVICE).inapplicable
    assert said == ("" if recipe != "MXFP8" else quantised.NOT_CALIBRATED.format("te"))
    assert not reference.prepare(case, "exact", DEVICE).inapplicable


def test_a_delayed_scale_that_either_use_of_tied_weights_may_see_first_is_not_judged() -> None:
    tied = Case.parse(f"{LOOP.replace('microbatches=3', 'microbatches=4')}:tied_weights=1:recipe=DelayedScaling")
    assert reference.prepare(tied, "normal", DEVICE).inapplicable == quantised.EITHER_FIRST


def test_a_layer_that_does_not_quantise_is_another_case() -> None:
    found = verdict(f"{LOOP}:recipe=Float8CurrentScaling", "ForgetsTheRecipe")
    assert found.outcome is Outcome.NOT_THE_CASE
    assert "recipe=Float8CurrentScaling, and recipe=none ran" in found.findings[0].why


def test_a_layer_that_does_not_tell_its_recipe_has_not_run_it() -> None:
    found = verdict(f"{LOOP}:recipe=MXFP8", "SilentOfItsRecipe")
    assert found.outcome is Outcome.NOT_THE_CASE


def test_the_argument_is_checked_on_the_data_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "level", lambda *_: None)
    case = Case.parse(f"{LOOP}:recipe=Float8CurrentScaling:seed=2")
    assert (
        "its scale in Float8CurrentScaling is no power of two" in reference.prepare(case, "exact", DEVICE).inapplicable
    )
    reference._kept.cache_clear()


@pytest.mark.parametrize(
    "tail",
    (
        "recipe=Float8CurrentScaling:m_splits=0,0,64:in_features=1:microbatches=1:seed=227",
        "recipe=DelayedScaling:m_splits=1,1,200:in_features=1:microbatches=3:seed=37",
    ),
)
def test_sums_of_an_expert_of_smaller_integers_are_counted_in_these(tail: str) -> None:
    case = Case.parse(f"torch:api=loop:out_features=256:bias=1:{tail}")
    found = reference.prepare(case, "exact", DEVICE)
    assert not found.inapplicable
    unit = 2.0 ** found.exponents["dgrad"]
    for k, roles in enumerate(found.roles):
        for expert, sums in enumerate(roles["dgrad"].scale.split(list(case.splits(k)))):
            assert not sums.numel() or float(sums.max()) <= 256 * unit / 4 ** (expert % 3)


@pytest.mark.parametrize("fill", ("exact", "range"))
@pytest.mark.parametrize("recipe", QUOTIENTS)
def test_every_tensor_with_a_scale_of_its_own_has_the_seven(recipe: str, fill: str) -> None:
    case = Case.parse(f"{LOOP}:recipe={recipe}")
    found = draw(case, fill, DEVICE)  # type: ignore[arg-type]
    parts = [*found.weight]
    for k in range(case.microbatches):
        for one in (found.x[k], found.grad_output[k]):
            parts += [rows for rows in one.split(list(case.splits(k))) if len(rows)]
    for part in parts:
        significand, _ = torch.frexp(part.abs().max().double())
        assert significand.item() == AMAX / 8


@pytest.mark.parametrize("kind", ("x", "grad_output"))
def test_a_seven_makes_the_scale_a_power_of_two(kind: str) -> None:
    quantiser = Quantiser(RECIPES["Float8CurrentScaling"])
    to = {"x": E4M3, "grad_output": E5M2}[kind]
    significand, _ = torch.frexp(torch.tensor(torch.finfo(to).max / AMAX))
    assert (quantiser.format(kind), significand.item()) == (to, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("splits", "multiple"), (("128,0,256", 128), ("32,0,64", 32), ("48,0,16", 16), ("17,0,8", 1)))
def test_the_splits_of_a_recipe_keep_the_multiple_that_they_have(splits: str, multiple: int) -> None:
    case = Case.parse(f"torch:api=loop:recipe=MXFP8:m_splits={splits}:microbatches=4")
    sizes = [tokens for k in range(4) for tokens in case.splits(k)]
    assert all(tokens % multiple == 0 for tokens in sizes)
    plain = Case.parse(f"torch:api=loop:m_splits={splits}:microbatches=4")
    assert [plain.splits(k) for k in range(4)] != [case.splits(k) for k in range(4)] or multiple == 1


def here(te: str, cublas: str = "13.5", capability: tuple[int, int] = (9, 0)) -> Environment:
    versions = {"transformer_engine": te, "cublaslt": cublas, "torch": "2.11"}
    return Environment(versions=versions, compute_capability=capability)


PADDED = "m_splits=128,0,256:in_features=256:out_features=128"
HIGH = "te:api=module:recipe=Float8CurrentScaling:backward_override=high_precision"
SINGLE = "module-single-weight-needs-native"
NO_BLOCKS = "module-has-no-block-scaling"
# A case, where it runs -> the row of the table that closes it, or "".
CLOSED = (
    ("te:api=module:path=legacy:recipe=DelayedScaling", here("2.17.1"), ""),
    ("te:api=module:path=native:recipe=DelayedScaling", here("2.20.2"), "module-falls-back"),
    ("te:api=module:path=native:recipe=Float8CurrentScaling", here("2.17.1"), "module-falls-back"),
    ("te:api=module:path=native:recipe=Float8CurrentScaling", here("2.20.2"), ""),
    ("te:api=module:path=native:recipe=Float8CurrentScaling", here("2.20.2", "13.4"), "module-falls-back"),
    ("te:api=module:path=native:recipe=Float8BlockScaling", here("2.20.2"), "module-falls-back"),
    ("te:api=module:path=native:recipe=Float8BlockScaling", here("2.20.2", "13.6"), ""),
    ("te:api=module:path=native:single_grouped_weight=1:recipe=DelayedScaling", here("2.20.2"), SINGLE),
    ("te:api=module:path=legacy:recipe=MXFP8", here("2.20.2"), "recipe-needs-blackwell"),
    ("te:api=module:path=legacy:recipe=MXFP8", here("2.20.2", capability=(10, 0)), ""),
    ("te:api=module:path=legacy:recipe=MXFP8", here("2.20.2", capability=(12, 0)), "recipe-needs-blackwell"),
    ("te:api=module:path=legacy:recipe=DelayedScaling", here("2.20.2", capability=(8, 0)), "recipe-needs-fp8"),
    ("te:api=module:path=legacy:recipe=DelayedScaling", here("2.20.2", capability=(8, 9)), ""),
    ("te:api=op:recipe=Float8BlockScaling", here("2.20.2", capability=(8, 9)), "recipe-needs-fp8"),
    ("te:api=module:path=native:recipe=MXFP8", here("2.20.2", "13.1", (10, 0)), "module-falls-back"),
    ("te:api=op:recipe=MXFP8", here("2.17.1", "13.1", (10, 0)), "op-needs-cublas"),
    ("te:api=op:recipe=DelayedScaling", here("2.17.1", "13.1", (10, 0)), ""),
    ("te:api=module:path=native:recipe=Float8BlockScaling", here("2.18.0", "13.6", (10, 0)), NO_BLOCKS),
    ("te:api=module:path=native:recipe=Float8BlockScaling", here("2.19.0", "13.6", (10, 0)), "module-falls-back"),
    ("te:api=op:recipe=Float8BlockScaling", here("2.18.0", "13.1", (10, 0)), ""),
    ("te:api=op:recipe=Float8BlockScaling", here("2.17.1"), "op-has-no-block-scaling"),
    ("te:api=op:recipe=Float8BlockScaling", here("2.20.2"), ""),
    ("te:api=op:recipe=Float8CurrentScaling", here("2.17.1", "13.1"), ""),
    (f"{HIGH}:path=legacy", here("2.14.1"), "override-since-2.15"),
    (f"{HIGH}:path=legacy", here("2.17.1"), ""),
    (f"{HIGH}:path=native", here("2.20.2"), "module-falls-back"),
)  # fmt: skip


@pytest.mark.parametrize(("case", "where", "row"), CLOSED)
def test_the_table_says_where_a_recipe_runs(case: str, where: Environment, row: str) -> None:
    assert [one.name for one in closed(Case.parse(f"{case}:{PADDED}"), where)] == ([row] if row else [])


@pytest.mark.parametrize(("cuda", "row"), (("12.8", ["recipe-needs-fp8"]), ("12.9", []), ("13.0", []), ("", [])))
def test_scaling_by_blocks_needs_a_new_cuda_where_one_is_known(cuda: str, row: list[str]) -> None:
    where = here("2.20.2")
    where = msgspec.structs.replace(where, versions={**where.versions, "cuda": cuda})
    found = closed(Case.parse(f"te:api=module:path=legacy:recipe=Float8BlockScaling:{PADDED}"), where)
    assert [one.name for one in found] == row


def test_another_recipe_opens_the_native_path_from_the_version_on_that_is_named() -> None:
    case = Case.parse(f"te:api=module:path=native:recipe=DelayedScaling:{PADDED}")
    old, new = (closed(case, here(version))[0].unlock for version in ("2.17.1", "2.18.0"))
    assert (old, new) == (f"{new} of Transformer Engine 2.18 or newer", "recipe=Float8CurrentScaling")


EXCLUDED = {
    "te:api=module:recipe=NVFP4": "nvfp4-loses-something",
    "te:api=module:backward_override=dequantized": "override-needs-a-recipe",
    "te:api=module:recipe=DelayedScaling:backward_override=dequantized": "override-needs-a-recipe",
    "te:api=module:recipe=DelayedScaling:grad_output=expanded": "uniform-grad-output-has-a-scale",
    "torch:api=loop:recipe=DelayedScaling:grad_output=expanded:tied_weights=1": "uniform-grad-output-has-a-scale",
    "torch:api=grouped_mm:recipe=MXFP8": "recipe-needs-a-quantiser",
    "te:api=op_mlp:recipe=MXFP8": "chain-has-no-recipe",
}


@pytest.mark.parametrize("case", EXCLUDED)
def test_what_nobody_could_judge_is_excluded_with_its_reason(case: str) -> None:
    found = matrix.excluded(Case.parse(case))
    assert found is not None
    assert found.constraint == EXCLUDED[case]


def test_the_contract_says_what_is_quantised_and_how() -> None:
    said = "\n".join(contract.in_words(Case.parse("te:api=module:recipe=MXFP8:backward_override=high_precision")))
    assert "recipe=MXFP8: x_i, w_i and grad_output_i are quantised for each GEMM (E4M3; a power of two" in said
    assert "backward_override=high_precision: the backward multiplies all as it was given, unquantised" in said


def test_what_quantises_is_recorded_as_what_ran() -> None:
    assert observed(f"{LOOP}:recipe=MXFP8").effective["recipe"] == "MXFP8"


def test_where_no_data_allows_a_comparison_nobody_is_said_to_have_run_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case.parse(f"{LOOP}:recipe=DelayedScaling:tied_weights=1:seed=3")
    monkeypatch.setattr(reference, "_lossy", lambda *_: "nothing is lossless here")
    job = pipeline.job(case)
    found = conclude(case, engine(job.target).run(job), CPU)
    reference._kept.cache_clear()
    assert found.outcome is Outcome.UNTESTED
    assert "the data does not allow one" in found.findings[0].why
