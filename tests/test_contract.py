"""Does the case alone say which gradients must exist, where, and holding what?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli.judge.contract import Expected, expected, in_words
from gradcheck_cli.records.case import Case

BASE = "torch:api=loop:m_splits=5,0,0,9,7:in_features=16:out_features=24"
WGRADS = {
    "unfused, one weight per expert": ("", ("grad", "sum", (24, 16), "bfloat16", None)),
    "unfused, packed": (":single_grouped_weight=1", ("grad", "sum", (5, 24, 16), "bfloat16", None)),
    "fused": (":fuse_wgrad=1", ("main_grad", "prefill+sum", (24, 16), "float32", True)),
    "fused, packed": (
        ":fuse_wgrad=1:single_grouped_weight=1",
        ("main_grad", "prefill+sum", (5, 24, 16), "float32", True),
    ),
    "unfused in fp16": (":dtype=fp16", ("grad", "sum", (24, 16), "float16", None)),
}
WORDS = {
    "the splits of each microbatch": ("", "microbatch 1: m_splits = [6, 4, 0, 0, 7]"),
    "an unfused wgrad": (
        "",
        "wgrad: .grad of each of the 5 weights, (24, 16) bfloat16, is the sum over 2 microbatches",
    ),
    "a packed wgrad": (":single_grouped_weight=1", "wgrad: .grad of the packed weight, (5, 24, 16) bfloat16"),
    "a fused wgrad": (":fuse_wgrad=1", "(24, 16) float32, is its prefill plus the sum over 2 microbatches"),
    "the flag": (":fuse_wgrad=1", "grad_added_to_main_grad is True"),
    "an expert without tokens": ("", ".grad is exactly 0; an attached main_grad keeps its prefill"),
    "a bgrad": (":bias=1", "bgrad: .grad of each bias, (24,) bfloat16"),
    "a single microbatch": (
        ":microbatches=1",
        ".grad of each of the 5 weights, (24, 16) bfloat16, is grad_output_i^T x_i",
    ),
}

flags = st.booleans()


def of(tail: str, role: str) -> list[Expected]:
    return [slot for slot in expected(Case.parse(BASE + tail)) if slot.role == role]


@given(st.integers(1, 6), st.integers(1, 4), flags, flags, flags)
def test_every_expert_has_every_gradient_after_every_microbatch(
    experts: int,
    microbatches: int,
    bias: bool,  # noqa: FBT001
    fused: bool,  # noqa: FBT001
    packed: bool,  # noqa: FBT001
) -> None:
    case = Case(
        provider="torch",
        api="loop",
        num_gemms=experts,
        microbatches=microbatches,
        bias=bias,
        fuse_wgrad_accumulation=fused,
        single_grouped_weight=packed,
    )
    named = [(slot.role, slot.expert, slot.microbatch) for slot in expected(case)]
    assert len(named) == len(set(named)) == experts * microbatches * (3 + bias)


@pytest.mark.parametrize(("tail", "wanted"), tuple(WGRADS.values()), ids=WGRADS)
def test_a_wgrad_is_due_in_its_buffer_with_its_shape_dtype_and_flag(tail: str, wanted: tuple[object, ...]) -> None:
    found = {(slot.buffer, slot.content, slot.shape, slot.dtype, slot.flag) for slot in of(tail, "wgrad")}
    assert found == {wanted}


def test_a_dummy_has_the_dtype_of_its_parameter_not_of_its_main_grad() -> None:
    assert {slot.parameter_dtype for slot in of(":fuse_wgrad=1", "wgrad")} == {"bfloat16"}


def test_rows_of_an_expert_are_empty_in_the_microbatch_that_gives_it_none() -> None:
    assert [(slot.microbatch, slot.expert) for slot in of("", "fprop") if slot.empty] == [
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 3),
    ]


@pytest.mark.parametrize("role", ("wgrad", "bgrad"))
def test_a_sum_is_empty_until_a_first_token_has_come(role: str) -> None:
    assert [(slot.microbatch, slot.expert) for slot in of(":bias=1", role) if slot.empty] == [(0, 1), (0, 2), (1, 2)]


def test_the_output_is_due_after_the_forward_and_everything_else_after_the_backward() -> None:
    due = {(slot.role, slot.phase) for slot in expected(Case.parse(f"{BASE}:bias=1"))}
    assert due == {("fprop", "forward"), ("dgrad", "backward"), ("wgrad", "backward"), ("bgrad", "backward")}


@pytest.mark.parametrize(("role", "shapes"), (("fprop", [(21, 24), (17, 24)]), ("dgrad", [(21, 16), (17, 16)])))
def test_rows_shrink_with_the_splits_of_the_microbatch(role: str, shapes: list[tuple[int, int]]) -> None:
    assert [slot.shape for slot in of("", role) if slot.expert == 0] == shapes


def test_a_case_without_bias_has_no_bgrad() -> None:
    assert of("", "bgrad") == []


@pytest.mark.parametrize(("tail", "words"), tuple(WORDS.values()), ids=WORDS)
def test_the_contract_in_words_names(tail: str, words: str) -> None:
    assert words in "\n".join(in_words(Case.parse(BASE + tail)))


def test_the_contract_in_words_is_silent_on_a_bias_that_is_not_there() -> None:
    assert not [line for line in in_words(Case.parse(BASE)) if "bgrad" in line]
