"""Does the oracle quantise as torch's FP8 types do, and as each recipe says?"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.compute import quantised
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.providers.torch_quantised import Quantiser, block_scales, quotient
from gradcheck_cli.compute.quantised import E4M3, E5M2, SUMMED, Float8, nearest, operands, power_of_two
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Fill
from gradcheck_cli.records.recipe import RECIPES

FORMATS = {"E4M3": (E4M3, torch.float8_e4m3fn), "E5M2": (E5M2, torch.float8_e5m2)}
DEVICE = torch.device("cpu")
LOOP = "torch:api=loop:m_splits=32,0,160:in_features=160:out_features=48:microbatches=3"
KNOWN = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8")

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
within = st.floats(-60000, 60000, width=32)
# Near the numbers where the power of two of a block changes: 448 / amax is one itself.
edges = st.builds(
    lambda power, steps: float((torch.tensor(448.0 * 2.0**power).view(torch.int32) + steps).view(torch.float32)),
    st.integers(-40, 40),
    st.integers(-3, 3),
)


@pytest.mark.parametrize("name", FORMATS)
@given(values=st.lists(st.one_of(floats, within, st.floats(-(2.0**-5), 2.0**-5, width=32)), min_size=1))
@settings(max_examples=60, deadline=None)
def test_a_number_is_rounded_as_torch_rounds_it_bit_for_bit(name: str, values: list[float]) -> None:
    to, dtype = FORMATS[name]
    given_values = torch.tensor(values)
    of_torch = given_values.clamp(-to.largest, to.largest).to(dtype)
    assert torch.equal(
        nearest(given_values.double(), to).float().to(dtype).view(torch.uint8), of_torch.view(torch.uint8)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_number_of_a_format_stays_and_ties_go_to_the_even_one(name: str) -> None:
    to, dtype = FORMATS[name]
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    every = every[every.isfinite()].unique()
    middles = (every[1:] + every[:-1]) / 2
    assert torch.equal(nearest(every, to), every)
    assert torch.equal(nearest(middles, to), middles.float().to(dtype).double())


@given(amax=st.one_of(st.floats(2.0**-60, 2.0**60, width=32), edges))
@settings(max_examples=300, deadline=None)
def test_both_ways_to_a_power_of_two_give_the_largest_that_fits(amax: float) -> None:
    """Bits cut off a quotient (Float8BlockScaling), an exponent rounded up (MXFP8) and the definition."""
    one = torch.tensor([[[[amax]]]])
    found = float(power_of_two(one, E4M3))
    rounded_up = math.ceil(math.log2(float(one * torch.tensor(1 / 448))))
    assert found == float(block_scales(one, torch.float8_e4m3fn)) == 2.0**-rounded_up
    assert found * amax <= E4M3.largest < 2 * found * amax


@given(amax=st.floats(2.0**-60, 2.0**60, width=32), to=st.sampled_from(list(FORMATS.values())))
@settings(max_examples=200, deadline=None)
def test_a_quotient_is_divided_once(amax: float, to: tuple[Float8, torch.dtype]) -> None:
    one = torch.tensor(amax)
    found = quantised.quotients([[one]], [one], to[0])
    assert float(found) == float(quotient(one, to[1])) == float(torch.tensor(to[0].largest) / one)


@pytest.mark.parametrize("recipe", KNOWN)
@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
def test_oracle_and_torch_quantise_alike_bit_for_bit(recipe: str, dtype: str) -> None:
    case = Case.parse(f"{LOOP}:recipe={recipe}:dtype={dtype}")
    inputs, candidate = draw(case, "normal", DEVICE), Quantiser(RECIPES[recipe])  # type: ignore[index]
    for k in range(case.microbatches):
        candidate.step()
        rows = {"x": inputs.x[k], "grad_output": inputs.grad_output[k]}
        for role, summed in SUMMED.items():
            found = operands(case, inputs, k, role)._asdict()
            for name, along in summed.items():
                parts = inputs.weight if name == "weight" else rows[name].split(list(case.splits(k)))
                left = [candidate.through(part, name, i, along) for i, part in enumerate(parts)]
                whole = torch.stack(left) if name == "weight" else torch.cat(left)
                assert torch.equal(found[name].float(), whole), (k, role, name)


@pytest.mark.parametrize("recipe", KNOWN[2:])
def test_what_a_power_of_two_left_is_left_by_it_again(recipe: str) -> None:
    case = Case.parse(f"{LOOP}:recipe={recipe}")
    weight = draw(case, "normal", DEVICE).weight[0]
    once = quantised.in_blocks(weight, RECIPES[recipe], "weight", "columns")  # type: ignore[index]
    again = quantised.in_blocks(once, RECIPES[recipe], "weight", "columns")  # type: ignore[index]
    assert torch.equal(again, once)
    assert not torch.equal(once, weight.double())


def test_rows_and_columns_differ_where_blocks_lie_along_the_sums() -> None:
    for recipe in KNOWN:
        case = Case.parse(f"{LOOP}:recipe={recipe}")
        inputs = draw(case, "normal", DEVICE)
        same = torch.equal(operands(case, inputs, 0, "fprop").x, operands(case, inputs, 0, "wgrad").x)
        assert same == (RECIPES[recipe].scale == "quotient")  # type: ignore[index]


@given(
    recipe=st.sampled_from(KNOWN),
    dtype=st.sampled_from(("bf16", "fp16", "fp32")),
    fill=st.sampled_from(("exact", "range")),
    m_splits=st.sampled_from(("32,0,64", "1,1,2,1", "17,0,8,40", "2,130")),
    features=st.tuples(st.integers(1, 200), st.integers(1, 150)),
    microbatches=st.integers(1, 4),
)
@settings(max_examples=30, deadline=None)
def test_quantisation_loses_nothing_of_integers(
    recipe: str, dtype: str, fill: Fill, m_splits: str, features: tuple[int, int], microbatches: int
) -> None:
    case = Case.parse(
        f"torch:api=loop:recipe={recipe}:dtype={dtype}:m_splits={m_splits}:in_features={features[0]}:"
        f"out_features={features[1]}:microbatches={microbatches}"
    )
    inputs = draw(case, fill, DEVICE)
    for k in range(microbatches):
        raw = {"x": inputs.x[k], "weight": inputs.weight, "grad_output": inputs.grad_output[k]}
        for role in SUMMED:
            found = operands(case, inputs, k, role)._asdict()
            assert all(torch.equal(found[name].double(), whole.double()) for name, whole in raw.items()), (k, role)
