"""Are the figures the ones a slow loop would find, and do bounds grow where rounding does?"""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli import pipeline
from gradcheck_cli.compute.contents import Content, accumulated, contents
from gradcheck_cli.compute.found import Found, Held
from gradcheck_cli.compute.measure import Explain, delivered, deviation_per_expert, measure, shown_per_expert
from gradcheck_cli.compute.products import Exact, growth
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.records.base import from_json, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import INFINITE, Buffer, Deviation, Role, SlotSeen
from gradcheck_cli.records.rounding import Rounding

CPU = torch.device("cpu")
ROUNDING = Rounding(
    store=2.0**-8,
    floor=0.0,
    buffer=2.0**-24,
    accumulate=2.0**-24,
    linear=False,
    operands=0.0,
    lambda_=4.0,
    rounds_before_adding=True,
)
ODD = {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf")}
CASE = Case.parse("torch:api=loop:bias=1:m_splits=5,0,9:in_features=8:out_features=8:dtype=fp32")
SLOTS: dict[str, tuple[Role, Buffer]] = {
    "fprop": ("fprop", "output"),
    "dgrad": ("dgrad", "input.grad"),
    "wgrad in .grad": ("wgrad", "grad"),
    "wgrad in main_grad": ("wgrad", "main_grad"),
    "bgrad": ("bgrad", "grad"),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[torch.Tensor, Content, list[int]]:
    """Found and expected rows of a few experts, some without rows, with bounds that may be 0 and odd elements."""
    rows = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    columns = draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (sum(rows), columns)
    value = torch.randint(-3, 4, shape, generator=generator).double()
    found = value + torch.randint(-1, 2, shape, generator=generator) * torch.rand(shape, generator=generator).double()
    if found.numel() and draw(st.booleans()):
        found.view(-1)[draw(st.integers(0, found.numel() - 1))] = draw(st.sampled_from(list(ODD.values())))
    parts = [torch.rand(shape, generator=generator).double() * draw(st.integers(0, 1)) for _ in range(3)]
    fixed, free, operands = parts
    return found, Content(value, fixed, free, operands), rows


def slowly(found: torch.Tensor, content: Content, lambda_: float) -> dict[str, float]:
    """The figures of one expert, element by element."""
    top = {"compared": 0.0, "differing": 0.0, "largest_error": 0.0, "ratio": 0.0, "after_rounding": 0.0}
    top["smallest_lambda"] = 0.0
    assert content.fixed is not None
    assert content.free is not None
    assert content.operands is not None
    parts = (found, content.value, content.fixed, content.free, content.operands)
    for seen, right, fixed, free, operands in zip(*(part.flatten().tolist() for part in parts), strict=True):
        error = abs(seen - right) if math.isfinite(seen) else INFINITE
        figures = {
            "largest_error": error,
            "ratio": quotient(error, fixed + lambda_ * free + operands),
            "after_rounding": quotient(max(error - fixed, 0.0), lambda_ * free + operands),
            "smallest_lambda": quotient(max(error - fixed - operands, 0.0), free),
        }
        top |= {name: max(top[name], figure) for name, figure in figures.items()}
        top["compared"] += 1
        top["differing"] += seen != right
    return top


def quotient(part: float, whole: float) -> float:
    if whole > 0:
        return min(part / whole, INFINITE)
    return INFINITE if part > 0 else 0.0


def cut(content: Content, start: int, end: int) -> Content:
    parts = (content.value, content.fixed, content.free, content.operands)
    value, fixed, free, operands = (part[start:end] for part in parts if part is not None)
    return Content(value, fixed, free, operands)


def bound(content: Content, lambda_: float) -> torch.Tensor:
    assert content.fixed is not None
    assert content.free is not None
    assert content.operands is not None
    return content.fixed + lambda_ * content.free + content.operands


def held(*tensors: torch.Tensor | None) -> Found:
    return Found("wgrad", "grad", [Held(tensor, present=tensor is not None) for tensor in tensors])


@settings(deadline=None, max_examples=80)
@given(tables(), st.floats(0.5, 8))
def test_the_figures_are_those_of_a_slow_loop(table: tuple[torch.Tensor, Content, list[int]], lambda_: float) -> None:
    found, content, rows = table
    seen = deviation_per_expert(found, content, rows, lambda_, bounded=True)
    start = 0
    for one, size in zip(seen, rows, strict=True):
        wanted = slowly(found[start : start + size], cut(content, start, start + size), lambda_)
        assert {name: getattr(one, name) for name in wanted} == pytest.approx(wanted, rel=1e-6)  # seven digits are kept
        start += size


@settings(deadline=None, max_examples=60)
@given(tables())
def test_the_worst_element_is_the_one_that_is_quoted(table: tuple[torch.Tensor, Content, list[int]]) -> None:
    found, content, rows = table
    parts = zip(found.split(rows), content.value.split(rows), strict=True)
    for one, (seen, right) in zip(deviation_per_expert(found, content, rows, 4.0, bounded=True), parts, strict=True):
        if not one.compared:
            continue
        quoted = (one.expected, one.found if one.found != INFINITE else None)
        element = float(seen[one.worst])
        assert quoted == (float(right[one.worst]), element if math.isfinite(element) else None)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_the_smallest_lambda_is_where_a_slot_just_passes(table: tuple[torch.Tensor, Content, list[int]]) -> None:
    found, content, rows = table
    for i, one in enumerate(deviation_per_expert(found, content, rows, 4.0, bounded=True)):
        assert one.smallest_lambda is not None
        if 0 < one.smallest_lambda < INFINITE:
            assert ratio(found, content, rows, one.smallest_lambda * (1 + 1e-9), i) <= 1
            assert ratio(found, content, rows, one.smallest_lambda * 0.9, i) > 1


def ratio(found: torch.Tensor, content: Content, rows: list[int], lambda_: float, expert: int) -> float:
    seen: list[Deviation] = deviation_per_expert(found, content, rows, lambda_, bounded=True)
    figure = seen[expert].ratio
    assert figure is not None
    return figure


@pytest.mark.parametrize("odd", tuple(ODD.values()), ids=ODD)
def test_an_element_that_is_not_finite_is_infinitely_wrong(odd: float) -> None:
    value, wide = torch.zeros(1, 3).double(), torch.ones(1, 3).double()
    found = torch.tensor([[0.0, odd, 0.0]]).double()
    (one,) = deviation_per_expert(found, Content(value, wide, wide, wide), [1], 4.0, bounded=True)
    assert (one.differing, one.largest_error, one.worst) == (1, INFINITE, (0, 1))


@pytest.mark.parametrize("odd", tuple(ODD.values()), ids=ODD)
def test_what_was_not_finite_and_is_left_alone_does_not_differ(odd: float) -> None:
    held_before, changed = torch.tensor([[0.0, odd, 0.0]]), torch.tensor([[0.0, 7.0, 0.0]])
    for found, differing in ((held_before, 0), (changed, 1)):
        (one,) = measured(held(found), {"before": Content(held_before.double())}, [1])
        told = one.contents["before"]
        assert told.differing == differing
        assert from_json(to_json(one), SlotSeen) == one


def test_an_error_where_the_bound_is_zero_is_beyond_every_bound() -> None:
    nothing = torch.zeros(1, 2).double()
    found = torch.tensor([[0.0, 1e-30]]).double()
    (one,) = deviation_per_expert(found, Content(nothing, nothing, nothing, nothing), [1], 4.0, bounded=True)
    assert (one.ratio, one.smallest_lambda) == (INFINITE, INFINITE)


def test_exact_data_is_measured_without_a_bound() -> None:
    nothing = torch.zeros(2, 2).double()
    (one,) = deviation_per_expert(nothing, Content(nothing, nothing, nothing, nothing), [2], 4.0, bounded=False)
    assert (one.compared, one.differing, one.ratio, one.smallest_lambda) == (4, 0, None, None)


def measured(
    found: Found, right: dict[str, Content], rows: list[int], explain: Explain | None = None
) -> list[SlotSeen]:
    """What was found against all it may hold, of which the first is due."""
    shown = shown_per_expert(next(iter(right.values())), rows)
    return measure(found, right, rows, 4.0, bounded=False, shown=shown, explain=explain)


def test_an_expert_whose_tensor_is_not_there_is_not_measured() -> None:
    right = {"sum": Content(torch.ones(2, 1, 2).double())}
    seen = measured(held(torch.ones(1, 2), None), right, [1, 1])
    assert [(one.present, bool(one.contents), one.nonzero_expected) for one in seen] == [
        (True, True, 2),
        (False, False, 0),
    ]


def test_what_is_not_finite_is_counted_in_the_expert_that_holds_it() -> None:
    right = {"sum": Content(torch.ones(2, 1, 2).double())}
    tensors = torch.ones(1, 2), torch.tensor([[float("nan"), float("inf")]])
    assert [one.nonfinite for one in measured(held(*tensors), right, [1, 1])] == [0, 2]


def test_a_residual_is_a_distance_relative_to_what_is_expected() -> None:
    right = {"sum": Content(torch.full((1, 1, 4), 2.0).double())}
    (one,) = measured(held(torch.full((1, 4), 3.0)), right, [1])
    assert one.residuals == {"sum": 0.5}


def test_a_wrong_content_is_looked_for_where_nothing_right_is_held() -> None:
    right = {"sum": Content(torch.ones(2, 1, 2).double())}
    found = held(torch.ones(1, 2), torch.zeros(1, 2))
    explained = measured(found, right, [1, 1], explain=lambda expert, raw: {"zero": float(expert)})
    assert [one.residuals for one in explained] == [{"sum": 0.0}, {"sum": 1.0, "zero": 1.0}]


def test_an_element_may_be_rounded_in_another_order() -> None:
    value, *others = (torch.tensor([[one, 2.0]]).double() for one in (1.0, 4.0, 9.0))
    right = {"value": Content(value, otherwise=tuple(others))}
    for found, differing in (([1.0, 2.0], 0), ([4.0, 2.0], 0), ([9.0, 2.0], 0), ([2.0, 2.0], 1), ([4.0, 4.0], 1)):
        (one,) = measured(held(torch.tensor([found])), right, [1])
        assert one.contents["value"].differing == differing


def in_main_grad(prefill: float, step: float) -> dict[str, Content]:
    """What one element of a main_grad may hold: prefill and sum, or prefill alone."""
    before = torch.full((1, 1), prefill, dtype=torch.float64)
    return {"prefill+sum": Content(before + step, base=before), "prefill": Content(before)}


# A prefill and a wgrad -> whether adding one to the other in fp32 leaves anything to be seen.
ADDED = {
    "a wgrad like its prefill": (1.0, 1.0, True),
    "the smallest that moves an fp32 1": (1.0, 2.0**-23, True),
    "half of it, which rounds to even": (1.0, 2.0**-24, False),
    "far too small": (-1.5, 1e-12, False),
    "none": (1.0, 0.0, False),
}


@pytest.mark.parametrize(("prefill", "step", "shows"), tuple(ADDED.values()), ids=ADDED)
def test_a_fused_wgrad_counts_as_delivered_where_it_moves_its_prefill_in_fp32(
    prefill: float,
    step: float,
    shows: bool,  # noqa: FBT001
) -> None:
    assert (delivered(in_main_grad(prefill, step)["prefill+sum"]).item() != 0) == shows


def test_an_unfused_wgrad_counts_as_delivered_however_small_it_is() -> None:
    assert (delivered(Content(torch.tensor([[1e-30, 0.0]]).double())) != 0).tolist() == [[True, False]]


def test_what_shows_in_a_main_grad_is_counted_expert_by_expert() -> None:
    before, step = torch.ones(2, 2).double(), torch.tensor([[1.0, 1e-12], [1e-12, 0.0]]).double()
    may_hold = {"prefill+sum": Content(before + step, base=before), "prefill": Content(before)}
    held = [Held(tensor=row[None].float(), present=True) for row in before + step]
    seen = measured(Found("wgrad", "main_grad", held), may_hold, [1, 1])
    assert [one.nonzero_expected for one in seen] == [1, 0]


@pytest.mark.parametrize("role_and_buffer", tuple(SLOTS.values()), ids=SLOTS)
@pytest.mark.parametrize("microbatch", (0, 1))
def test_a_larger_lambda_never_shrinks_a_bound(role_and_buffer: tuple[Role, Buffer], microbatch: int) -> None:
    role, buffer = role_and_buffer
    case = msgspec.structs.replace(CASE, fuse_wgrad_accumulation=buffer == "main_grad")
    reference = prepare(case, "normal", CPU)
    right = contents(case, reference, pipeline.job(case).rounding[role], role, buffer, microbatch)
    content = right.get("sum") or right.get("prefill+sum") or right["value"]
    assert (bound(content, 5.0) >= bound(content, 4.0)).all()
    assert (bound(content, 5.0) > bound(content, 4.0)).any()


@given(st.integers(1, 10**6), st.booleans())
def test_rounding_errors_grow_with_the_number_of_terms(terms: int, linear: bool) -> None:  # noqa: FBT001
    given_ = Rounding(**{**{name: getattr(ROUNDING, name) for name in ROUNDING.__struct_fields__}, "linear": linear})
    assert growth(given_, float(terms)) < growth(given_, float(terms + 1))


@given(st.integers(2, 10**6))
def test_errors_without_a_mean_of_zero_grow_faster(terms: int) -> None:
    linear = Rounding(**{**{name: getattr(ROUNDING, name) for name in ROUNDING.__struct_fields__}, "linear": True})
    assert growth(linear, float(terms)) > growth(ROUNDING, float(terms))


def sums(case: Case, steps: int, prefill: float | None, *, rounds_first: bool) -> Content:
    """Microbatches whose wgrad is 8 everywhere, with sums of |a||b| of 16, one after the other in a buffer."""
    one = torch.full((case.num_gemms, 2, 2), 8.0).double()
    start = None if prefill is None else torch.full_like(one, prefill)
    return accumulated(case, ROUNDING, [Exact(one, 2 * one, one)] * steps, start, rounds_first=rounds_first)


def test_a_wgrad_stored_in_bf16_before_it_is_added_may_be_wrong_by_a_rounding_each_time() -> None:
    fixed = sums(CASE, 2, 1.0, rounds_first=True).fixed
    assert fixed is not None
    assert fixed.unique().item() == 2 * 8 * 2**-8 + (9 + 17) * 2**-24


def test_a_wgrad_added_by_the_gemm_may_only_be_wrong_by_roundings_of_the_buffer() -> None:
    fixed = sums(CASE, 2, 1.0, rounds_first=False).fixed
    assert fixed is not None
    assert fixed.unique().item() == (9 + 17) * 2**-24


def test_a_gemm_that_adds_sums_up_the_buffer_as_one_term_more() -> None:
    free = sums(CASE, 2, 1.0, rounds_first=False).free
    assert free is not None
    terms = [(CASE.splits(0)[0], 1.0), (CASE.splits(1)[0], 9.0)]
    assert float(free[0, 0, 0]) == pytest.approx(sum(2**-24 * (n + 1) ** 0.5 * (16 + held) for n, held in terms))


def test_a_sum_that_is_rounded_before_it_is_added_has_no_term_more() -> None:
    free = sums(CASE, 2, 1.0, rounds_first=True).free
    assert free is not None
    assert float(free[0, 0, 0]) == pytest.approx(sum(2**-24 * CASE.splits(k)[0] ** 0.5 * 16 for k in (0, 1)))


def test_what_is_stored_first_meets_no_buffer() -> None:
    fixed = sums(CASE, 1, None, rounds_first=True).fixed
    assert fixed is not None
    assert fixed.unique().item() == 8 * 2**-8


def test_the_contents_of_a_main_grad_start_from_its_prefill() -> None:
    assert sums(CASE, 2, 1.0, rounds_first=True).value.unique().item() == 17


def test_no_rounding_is_granted_where_nothing_may_be_added() -> None:
    nothing = torch.zeros(CASE.num_gemms, 2, 2).double()
    content = accumulated(CASE, ROUNDING, [Exact(nothing, nothing, nothing)], nothing + 3, rounds_first=True)
    assert not bound(content, 4.0).any()
