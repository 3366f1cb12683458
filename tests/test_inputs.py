"""Is the data of a case such that a wrong gradient shows?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.compute.inputs import Inputs, draw, exponents_of
from gradcheck_cli.compute.integers import (
    LARGEST,
    LONG_IN_ONE_SUM,
    densities,
    integers_of,
    long,
    prefill,
    signature,
)
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.reference import compute, in_units, prepare
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, Fill

CPU = torch.device("cpu")
SMALL = "torch:api=loop:m_splits=5,0,9:in_features=8:out_features=12:bias=1"
SAME_DATA = {
    "another api": "torch:api=grouped_mm:m_splits=5,0,9:in_features=8:out_features=12:bias=1",
    "another provider and path": "te:api=module:path=native:m_splits=5,0,9:in_features=8:out_features=12:bias=1",
    "a packed weight": f"{SMALL}:single_grouped_weight=1",
    "fusion": f"{SMALL}:fuse_wgrad_accumulation=1",
}
OTHER_DATA = {"another seed": f"{SMALL}:seed=1", "other splits": SMALL.replace("5,0,9", "9,0,5")}

shapes = st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))


def tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    found = {"weight": inputs.weight, "x": torch.cat(inputs.x), "grad_output": torch.cat(inputs.grad_output)}
    return found if inputs.bias is None else found | {"bias": inputs.bias}


def whole(case: str, fill: Fill) -> dict[str, torch.Tensor]:
    """What an integer fill draws, in units of its powers of two."""
    exponents, inputs = exponents_of(Case.parse(case), fill), of(case, fill)
    found = tensors(inputs) | {"prefill": inputs.prefill}
    return {name: in_units(tensor.double(), exponents[name]) for name, tensor in found.items()}


def of(case: str, fill: Fill = "exact") -> Inputs:
    return draw(Case.parse(case), fill, CPU)


@pytest.mark.parametrize("other", tuple(SAME_DATA.values()), ids=SAME_DATA)
def test_cases_that_differ_only_in_who_computes_share_their_data(other: str) -> None:
    assert prepare(Case.parse(SMALL), "exact", CPU) is prepare(Case.parse(other), "exact", CPU)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("other", tuple(OTHER_DATA.values()), ids=OTHER_DATA)
def test_other_cases_get_other_data(other: str, fill: Fill) -> None:
    assert not torch.equal(of(SMALL, fill).weight, of(other, fill).weight)


def test_the_same_case_gets_the_same_data_again() -> None:
    first, second = tensors(of(SMALL, "normal")), tensors(of(SMALL, "normal"))
    assert all(torch.equal(first[name], second[name]) for name in first)


# What a candidate may do at its import -> and undo again.
DEFAULTS: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "dtype": (lambda: torch.set_default_dtype(torch.bfloat16), lambda: torch.set_default_dtype(torch.float32)),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
}


@pytest.fixture(params=DEFAULTS)
def careless(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    change, undo = DEFAULTS[request.param]
    yield change
    undo()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kind", ("random", "expanded"))
def test_a_candidate_that_changes_a_default_of_torch_changes_no_data(
    careless: Callable[[], None], fill: Fill, kind: str
) -> None:
    before = of(f"{SMALL}:grad_output={kind}", fill)
    careless()
    after = of(f"{SMALL}:grad_output={kind}", fill)
    assert torch.equal(after.prefill, before.prefill)
    assert all(torch.equal(one, tensors(before)[name]) for name, one in tensors(after).items())


@pytest.mark.parametrize("fill", FILLS)
def test_a_candidate_that_changes_a_default_of_torch_changes_no_reference(
    careless: Callable[[], None], fill: Fill
) -> None:
    case, inputs = Case.parse(SMALL), of(SMALL, fill)
    before = compute(case, inputs, fill)
    careless()
    after = compute(case, inputs, fill)
    assert after.largest_scale == before.largest_scale
    for one, other in zip(after.roles, before.roles, strict=True):
        assert all(torch.equal(one[role].value, other[role].value) for role in one)


def test_the_two_fills_are_drawn_independently() -> None:
    assert not torch.equal(of(SMALL, "exact").weight.sign(), of(SMALL, "normal").weight.sign())


@pytest.mark.parametrize("dtype", LARGEST)
def test_exact_data_is_integers_no_larger_than_stated(dtype: str) -> None:
    for name, tensor in whole(f"{SMALL}:dtype={dtype}", "exact").items():
        assert torch.equal(tensor, tensor.round()), name
        assert 0 < tensor.abs().max() <= (LARGEST[dtype] if name != "prefill" else 7), name


def test_microbatches_have_the_rows_of_their_splits() -> None:
    inputs = of(f"{SMALL}:microbatches=3")
    assert [(len(x), len(g)) for x, g in zip(inputs.x, inputs.grad_output, strict=True)] == [(14, 14), (11, 11), (9, 9)]


def test_no_two_microbatches_get_the_same_rows() -> None:
    first, second = of(SMALL, "normal").x
    assert not torch.equal(first[: len(second)], second)


def test_an_expanded_grad_output_is_all_ones() -> None:
    assert torch.cat(of(f"{SMALL}:grad_output=expanded", "normal").grad_output).unique().tolist() == [1.0]


def test_a_random_grad_output_has_no_two_equal_rows() -> None:
    rows = torch.cat(of(SMALL, "normal").grad_output)
    assert len(rows.unique(dim=0)) == len(rows)


@given(shapes)
def test_the_exact_prefill_is_nowhere_zero_and_of_small_integers(shape: tuple[int, ...]) -> None:
    assert set(prefill(shape).abs().unique().tolist()) <= set(range(1, 8))


@pytest.mark.parametrize("dim", (0, 1, 2), ids=["experts", "rows", "columns"])
@given(shapes)
def test_the_exact_prefill_differs_between_neighbours(dim: int, shape: tuple[int, ...]) -> None:
    assert (prefill(shape).diff(dim=dim) != 0).all()


@pytest.mark.parametrize("fill", FILLS)
def test_a_prefill_keeps_away_from_zero(fill: Fill) -> None:
    assert whole(SMALL, fill)["prefill"].abs().min() >= 0.5


@pytest.mark.parametrize("fill", FILLS)
def test_the_prefill_is_fp32_whatever_the_dtype(fill: Fill) -> None:
    assert of(SMALL, fill).prefill.dtype is torch.float32


integer_fills: st.SearchStrategy[Fill] = st.sampled_from(["exact", "range"])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(list(LARGEST)), st.integers(0, 5), integer_fills)
def test_more_thinning_never_makes_the_data_denser(k: int, n: int, dtype: str, thinning: int, fill: Fill) -> None:
    case = Case(provider="torch", api="loop", dtype=dtype, in_features=k, out_features=n)  # type: ignore[arg-type]
    drawn = integers_of(case, fill)
    first, second = densities(case, drawn, thinning), densities(case, drawn, thinning + 1)
    assert all(0 < second[name] <= first[name] <= 1 for name in first)


def test_a_grad_output_of_ones_is_not_thinned() -> None:
    case = Case.parse("torch:api=loop:m_splits=4000,4000:bias=1:grad_output=expanded")
    assert densities(case, integers_of(case, "exact"), 0)["grad_output"] == 1.0


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_a_prefill_of_the_range_probe_needs_a_bit_more_than_the_dtype_has(dtype: str) -> None:
    held = of(f"{SMALL}:dtype={dtype}", "range").prefill
    assert (held.to(DTYPES[dtype]).float() != held).all()


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_the_range_probe_draws_integers_that_its_dtype_holds(dtype: str) -> None:
    for name, tensor in whole(f"{SMALL}:dtype={dtype}", "range").items():
        assert torch.equal(tensor, tensor.round()), name
        assert tensor.abs().max() > 0, name


@pytest.mark.parametrize("fill", ("exact", "range"))
def test_however_thin_the_data_no_token_and_no_row_of_a_weight_is_invisible(fill: Fill) -> None:
    inputs = of("torch:api=loop:m_splits=5000,0,60:in_features=16:out_features=24", fill)
    for tensor in (inputs.weight, *inputs.x, *inputs.grad_output):
        assert tensor.abs().sum(-1).min() > 0


@given(st.integers(1, 40), st.integers(1, 9))
def test_tokens_that_are_near_to_each_other_are_marked_in_different_columns(rows: int, columns: int) -> None:
    marked = signature("x", (rows, columns)).int().argmax(1)
    assert all(marked[i] != marked[i + 1] for i in range(rows - 1) if columns > 1 and (i + 1) % columns)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_no_product_has_two_long_operands(tokens: int, k: int, n: int, experts: int) -> None:
    x, g, w = (
        long("x", (tokens, k)).int(),
        long("grad_output", (tokens, n)).int(),
        long("weight", (experts, n, k)).int(),
    )
    assert (g.T @ x).sum() == 0
    assert (x @ w[0].T).sum() == 0
    most = max(int(tensor.sum(0).max()) for tensor in (x, g) if tensor.numel()) if tokens else 0
    assert most <= LONG_IN_ONE_SUM
    assert int(x.sum()) == min(len(range(0, tokens, 2)), LONG_IN_ONE_SUM * ((k + 1) // 2))


@pytest.mark.parametrize("dtype", ("fp16", "fp32"))
def test_some_operands_of_the_range_probe_are_longer_than_bf16(dtype: str) -> None:
    inputs = of(f"{SMALL}:dtype={dtype}", "range")
    for tensor in (inputs.x[0], inputs.grad_output[0]):
        assert (tensor.bfloat16().double() != tensor.double()).any()


@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
def test_of_every_result_one_integer_fill_is_too_small_for_fp16_or_the_other_too_large(dtype: str) -> None:
    fills = [exponents_of(Case.parse(f"{SMALL}:dtype={dtype}"), fill) for fill in ("exact", "range")]
    for role in ("fprop", "dgrad", "wgrad", "bgrad"):
        first, second = sorted(fill[role] for fill in fills)
        assert (first <= -30, second >= 16) == (True, True), role


@pytest.mark.parametrize("fill", ("exact", "range"))
@pytest.mark.parametrize("kind", ("random", "expanded"))
def test_the_power_of_two_of_a_result_is_that_of_its_factors(fill: Fill, kind: str) -> None:
    own = exponents_of(Case.parse(f"{SMALL}:grad_output={kind}"), fill)
    assert own["grad_output"] == 0 or kind == "random"
    assert (own["fprop"], own["bias"]) == (own["x"] + own["weight"],) * 2
    assert own["dgrad"] == own["grad_output"] + own["weight"]
    assert (own["wgrad"], own["prefill"]) == (own["x"] + own["grad_output"],) * 2
    assert own["bgrad"] == own["grad_output"]
