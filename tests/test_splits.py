"""Do the patterns of m_splits give the experts what their names say?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli.records import splits

PATTERNS = {
    "balanced": (32, 32, 32, 32),
    "uneven": (12, 25, 38, 51),
    "empty_first": (0, 25, 38, 51),
    "empty_middle": (12, 25, 0, 51),
    "empty_last": (12, 25, 38, 0),
    "hot": (1, 1, 125, 1),
    "all_empty": (0, 0, 0, 0),
}
EMPTY_EXPERT = {"empty_first": 0, "empty_middle": 2, "empty_last": 4}

named = st.sampled_from(sorted(splits.FEWEST_EXPERTS))
counts = st.integers(1, 64)
sizes = st.lists(st.integers(0, 500), min_size=1, max_size=16).map(tuple)


def test_every_named_pattern_has_a_known_expansion() -> None:
    assert PATTERNS.keys() == splits.FEWEST_EXPERTS.keys()


@pytest.mark.parametrize(("name", "expected"), tuple(PATTERNS.items()), ids=PATTERNS)
def test_a_named_pattern_expands_to_the_tokens_of_each_expert(name: str, expected: tuple[int, ...]) -> None:
    assert splits.expand(name, 4, 32) == expected


@pytest.mark.parametrize(("name", "expert"), tuple(EMPTY_EXPERT.items()), ids=EMPTY_EXPERT)
def test_an_empty_pattern_empties_the_expert_it_names_and_no_other(name: str, expert: int) -> None:
    assert [i for i, size in enumerate(splits.expand(name, 5, 32)) if size == 0] == [expert]


def test_a_list_is_its_own_expansion_whatever_the_size_asked() -> None:
    assert splits.expand("64,0,128", 3, 999) == (64, 0, 128)


@given(named, counts, counts)
def test_a_pattern_gives_every_expert_a_share(name: str, num_gemms: int, tokens: int) -> None:
    assert len(splits.expand(name, num_gemms, tokens)) == num_gemms


@given(counts, counts)
def test_uneven_leaves_no_expert_empty_or_aligned_to_eight(num_gemms: int, tokens: int) -> None:
    assert all(size % 8 for size in splits.expand("uneven", num_gemms, tokens))


@given(st.integers(2, 64), counts)
def test_a_hot_expert_has_every_token_that_the_others_can_spare(num_gemms: int, tokens: int) -> None:
    *rest, hottest = sorted(splits.expand("hot", num_gemms, tokens))
    assert (set(rest), hottest) == ({1}, num_gemms * tokens - (num_gemms - 1))


@given(sizes)
def test_the_first_microbatch_has_the_splits_as_asked(asked: tuple[int, ...]) -> None:
    assert splits.of_microbatch(asked, 0) == asked


@given(sizes, st.integers(0, 15))
def test_a_microbatch_keeps_the_number_of_experts_with_tokens(asked: tuple[int, ...], microbatch: int) -> None:
    later = splits.of_microbatch(asked, microbatch)
    assert [bool(size) for size in later].count(True) == [bool(size) for size in asked].count(True)


def test_the_second_microbatch_rotates_the_experts_and_shrinks_their_shares() -> None:
    assert splits.of_microbatch((12, 24, 0, 48), 1) == (36, 9, 18, 0)


@given(sizes, st.integers(1, 15))
def test_no_later_microbatch_has_more_tokens_than_the_first(asked: tuple[int, ...], microbatch: int) -> None:
    assert sum(splits.of_microbatch(asked, microbatch)) <= sum(asked)
