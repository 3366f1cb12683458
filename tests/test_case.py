"""Is a case's id the case, in words that a person can also write?"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli import plugins
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records import splits
from gradcheck_cli.records.case import AXES, Case, allowed_values

PROVIDERS = list(plugins.BUILT_IN.values())
MATRICES = [name for name, _ in matrix.available()]

IDS = {
    "only what identifies": ("te:api=op", Case(provider="te", api="op")),
    "booleans as 0 and 1": ("te:api=op:bias=1", Case(provider="te", api="op", bias=True)),
    "explicit splits, which fix num_gemms": (
        "te:api=module:m_splits=64,0,128",
        Case(provider="te", api="module", m_splits="64,0,128", num_gemms=3),
    ),
    "the largest sizes": (
        "te:api=op:m_splits=9999999,0:in_features=1048576",
        Case(provider="te", api="op", m_splits="9999999,0", num_gemms=2, in_features=1 << 20),
    ),
    "axes in the order of the record": (
        "torch:api=loop:single_grouped_weight=1:dtype=fp32:seed=7",
        Case(provider="torch", api="loop", seed=7, dtype="fp32", single_grouped_weight=True),
    ),
}
SPELLINGS = {
    "the short name of an axis": ("te:api=op:fuse_wgrad=1", "te:api=op:fuse_wgrad_accumulation=1"),
    "axes in another order": ("te:dtype=fp16:bias=1:api=op", "te:api=op:dtype=fp16:bias=1"),
    "defaults written out": ("te:api=op:num_gemms=4:bias=0", "te:api=op"),
    "true for 1": ("te:api=op:bias=true", "te:api=op:bias=1"),
    "num_gemms beside the list it agrees with": ("te:api=op:m_splits=1,2:num_gemms=2", "te:api=op:m_splits=1,2"),
    "spaces around it": (" te:api=op\n", "te:api=op"),
}
WRONG = {
    "an unknown axis": ("te:api=op:color=red", "unknown axis 'color'; the axes are: provider, api, path"),
    "a value that the axis cannot have": ("te:api=op:dtype=fp8", "dtype=fp8: expected bf16 or fp16 or fp32"),
    "a switch that is neither 0 nor 1": ("te:api=op:bias=2", "bias=2: expected 0 or 1"),
    "a count of none": ("te:api=op:num_gemms=0", "num_gemms=0: expected a whole number, 1 to 1048576"),
    "a count beyond the largest": ("te:api=op:microbatches=17", "microbatches=17: expected a whole number, 1 to 16"),
    "a size beyond any machine": (
        "te:api=op:in_features=9999999999999999999999",
        "in_features=9999999999999999999999: expected a whole number, 1 to 1048576",
    ),
    "a size just past the largest": ("te:api=op:out_features=1048577", "expected a whole number, 1 to 1048576"),
    "more tokens than any machine holds": ("te:api=op:m_splits=99999999999", "m_splits=99999999999: expected balanced"),
    "too many tokens beside a few": ("te:api=op:m_splits=1,10000000", "m_splits=1,10000000: expected balanced"),
    "an unknown pattern": ("te:api=op:m_splits=odd", "m_splits=odd: expected balanced, uneven"),
    "a negative share": ("te:api=op:m_splits=1,-1", "or a list such as 64,0,128"),
    "a list of another length": ("te:api=op:m_splits=1,2:num_gemms=3", "names 2 experts, num_gemms=3"),
    "a part without a value": ("te:api=op:bias", "'bias' in 'te:api=op:bias' is not name=value"),
    "an axis named twice": ("te:api=op:bias=1:bias=0", "bias stands twice"),
    "an axis and its short name": ("te:api=op:fuse_wgrad=1:fuse_wgrad_accumulation=1", "stands twice"),
    "no api": ("te:dtype=bf16", "a case needs its api"),
    "nothing": ("", "provider=: expected a name in lower case"),
}


def of_matrix(name: str) -> list[Case]:
    found = matrix.enumerate_cases(matrix.load(name), PROVIDERS, seed=0)
    return [one.case if isinstance(one, matrix.Excluded) else one for one in found]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
    counts = st.integers(1, 10_000)
    lists = st.lists(st.integers(0, 999), min_size=1, max_size=9)
    sizes = draw(st.one_of(st.sampled_from(sorted(splits.FEWEST_EXPERTS)), lists))
    return Case(
        provider=draw(names),
        api=draw(names),
        path=draw(st.sampled_from(("auto", "legacy", "native"))),
        single_grouped_weight=draw(st.booleans()),
        fuse_wgrad_accumulation=draw(st.booleans()),
        dtype=draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        bias=draw(st.booleans()),
        m_splits=sizes if isinstance(sizes, str) else ",".join(map(str, sizes)),
        num_gemms=draw(counts) if isinstance(sizes, str) else len(sizes),
        tokens_per_expert=draw(counts),
        in_features=draw(counts),
        out_features=draw(counts),
        microbatches=draw(st.integers(1, 16)),
        grad_output=draw(st.sampled_from(("random", "expanded"))),
        seed=draw(st.integers(0, 2**31)),
    )


@pytest.mark.parametrize("name", MATRICES)
def test_every_case_of_a_matrix_reads_its_own_id_back(name: str) -> None:
    asked = of_matrix(name)
    assert [Case.parse(str(case)) for case in asked] == asked


@pytest.mark.parametrize("name", MATRICES)
def test_two_cases_of_a_matrix_never_share_an_id(name: str) -> None:
    ids = [str(case) for case in of_matrix(name)]
    assert len(set(ids)) == len(ids) > 0


@given(cases())
def test_any_case_reads_its_own_id_back(case: Case) -> None:
    assert Case.parse(str(case)) == case


@given(cases())
def test_any_case_is_rebuilt_from_all_its_axes(case: Case) -> None:
    assert Case.of(dict(case.axes())) == case


@given(cases())
def test_the_axes_of_a_case_name_every_axis_defaults_included(case: Case) -> None:
    assert tuple(case.axes()) == AXES


@pytest.mark.parametrize(("text", "case"), tuple(IDS.values()), ids=IDS)
def test_an_id_names_what_is_not_the_default(text: str, case: Case) -> None:
    assert str(case) == text


@pytest.mark.parametrize(("spelled", "text"), tuple(SPELLINGS.values()), ids=SPELLINGS)
def test_a_case_may_be_spelled_in_several_ways_and_has_one_id(spelled: str, text: str) -> None:
    assert str(Case.parse(spelled)) == text


@pytest.mark.parametrize(("text", "message"), tuple(WRONG.values()), ids=WRONG)
def test_a_wrong_id_is_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Case.parse(text)


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_says_what_it_may_be(axis: str) -> None:
    assert allowed_values(axis)


def test_a_list_of_splits_fixes_the_number_of_experts() -> None:
    assert Case.parse("te:api=op:m_splits=5,6,7,8,9").num_gemms == 5


def test_a_list_of_splits_is_what_the_first_microbatch_gets() -> None:
    assert Case.parse("te:api=op:m_splits=64,0,128").splits() == (64, 0, 128)


def test_microbatches_of_a_case_differ_in_size() -> None:
    case = Case(provider="te", api="op")
    assert sum(case.splits(1)) < sum(case.splits(0))
