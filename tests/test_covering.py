"""Does the expression that is proposed hold for what failed, and for nothing else of the run?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli import plugins
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.judge.covering import covering
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case

POINTS = list(matrix.enumerate_cases(matrix.load("core"), [plugins.BUILT_IN["te"], plugins.BUILT_IN["torch"]], 0))
CORE = [point for point in POINTS if isinstance(point, Case)]
MORE = [Case.parse(f"torch:api=loop:m_splits={splits}") for splits in ("64,0,128", "1,7,0,33,2", "hot", "uneven")]


@given(st.lists(st.sampled_from([*CORE, *MORE]), unique=True, min_size=1, max_size=40), st.data())
def test_it_holds_for_all_that_is_inside_and_for_nothing_that_is_outside(
    cases: list[Case], data: st.DataObject
) -> None:
    inside = data.draw(st.lists(st.sampled_from(cases), unique=True, min_size=1))
    outside = [case for case in cases if case not in inside]
    holds = compile_expression(covering(inside, outside))
    assert [case for case in inside if not holds(case)] == []
    assert [case for case in outside if holds(case)] == []


# What every case of core has in common, beside its sizes.
SHARED = "microbatches=2 and grad_output=random"
# What failed of the core matrix -> the expression.
RULES = {
    "one rule": (f"provider=te and api=module and single_grouped_weight=1 and bias=0 and {SHARED}", 36),
    "several values": (
        f"provider=torch and api in (grouped_mm, loop) and path=auto and dtype in (fp16, fp32) and bias=0 and {SHARED}",
        48,
    ),
    "two of three values": (
        f"provider=te and api=op and path=auto and bias=0 and m_splits in (balanced, uneven) and {SHARED}",
        24,
    ),
    "all of a layer": (f"provider=te and api=op and path=auto and bias=0 and {SHARED}", 36),
    "one exception": (
        f"provider=te and api=op and path=auto and bias=0 and {SHARED}"
        " and not (single_grouped_weight=1 and dtype=fp32)",
        30,
    ),
}


@pytest.mark.parametrize(("rule", "count"), RULES.values(), ids=RULES)
def test_a_rule_is_found_again(rule: str, count: int) -> None:
    holds = compile_expression(rule)
    inside = [case for case in CORE if holds(case)]
    assert len(inside) == count
    assert covering(inside, [case for case in CORE if not holds(case)]) == rule


LOOP = [
    Case.parse(f"torch:api=loop:m_splits={name}") for name in ("balanced", "hot", "uneven", "64,0,128", "all_empty")
]
RESTS = {
    "all values but one": (LOOP[:4], "m_splits!=all_empty"),
    "all values but two": (LOOP[:3], 'm_splits not in ("64,0,128", all_empty)'),
}


@pytest.mark.parametrize(("inside", "rule"), RESTS.values(), ids=RESTS)
def test_many_values_are_named_by_the_few_that_are_not_among_them(inside: list[Case], rule: str) -> None:
    assert f" and {rule} and " in covering(inside, [case for case in LOOP if case not in inside])


def test_what_all_cases_of_the_layer_share_is_named_whatever_other_layers_have() -> None:
    fp16 = [case for case in CORE if case.provider == "te" and case.api == "module" and case.dtype == "fp16"]
    others = [case for case in CORE if case.api != "module"]
    holds = compile_expression(covering([case for case in fp16 if case.path == "legacy"], others))
    assert [case for case in CORE if holds(case)] == [case for case in fp16 if case.path == "legacy"]


def test_other_layers_are_never_covered_though_the_run_had_none() -> None:
    te = [case for case in CORE if case.provider == "te"]
    holds = compile_expression(covering(te, []))
    assert [case for case in CORE if holds(case)] == te


def test_it_is_the_same_whatever_comes_first() -> None:
    alone = CORE[7]
    others = [case for case in CORE if case != alone]
    assert covering([alone], others) == covering([alone], others[::-1])
