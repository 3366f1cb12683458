"""Does -k select what it says, and say what it does not understand?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli import plugins
from gradcheck_cli.errors import UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case

CASES = [
    case
    for case in matrix.enumerate_cases(matrix.load("full"), list(plugins.BUILT_IN.values()), seed=0)
    if isinstance(case, Case)
]
CASE = Case.parse("te:api=module:fuse_wgrad_accumulation=1:dtype=fp16:m_splits=64,0,128:in_features=256")

# Each of these is an expression of ours and, letter by letter, one of Python's.
COMPARISONS = (
    "bias",
    "single_grouped_weight",
    "fuse_wgrad_accumulation==1",
    "dtype=='bf16'",
    'api != "op"',
    "num_gemms>=4",
    "num_gemms < 8",
    "in_features > 64",
    "out_features<=96",
    "dtype in ('bf16', 'fp32')",
    "m_splits not in ('hot', '64,0,128')",
)
comparisons = st.sampled_from(COMPARISONS)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map("not {}".format),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(("and", "or")), inner).map(" ".join),
    ),
    max_leaves=8,
)
cases = st.sampled_from(CASES)

SELECTS = {
    "an axis alone": "fuse_wgrad_accumulation",
    "the short name of an axis": "fuse_wgrad=1",
    "one equals sign": "api=module",
    "two equals signs": "api==module",
    "spaces around them": "  api   =  module ",
    "line breaks": "api=module\nand dtype=fp16",
    "a switch as a word": "bias=false",
    "a list of splits": "m_splits=64,0,128",
    "a list of splits with spaces": "m_splits != 64, 0",
    "a list of splits in quotes": "m_splits in (uneven, '64,0,128')",
    "one of several": "dtype in (fp16, fp32)",
    "none of several": "dtype not in (bf16, fp32)",
    "numbers in parentheses": "num_gemms in (3,8)",
    "not before and": "not dtype=fp16 or api=module",
    "and before or": "api=module or api=op and dtype=fp32",
    "parentheses first": "(api=op or api=module) and not bias",
    "many parentheses side by side": "(bias) or " * 60 + "(fuse_wgrad)",
    "many negations": "not " * 1000 + "fuse_wgrad",
    "many terms": "bias or " * 1000 + "fuse_wgrad",
}
LEAVES_OUT = {
    "an axis that is 0": "bias",
    "another value": "dtype=bf16",
    "and before or, grouped otherwise": "(api=module or api=op) and dtype=fp32",
    "not before and, grouped otherwise": "not (dtype=fp16 or api=module)",
    "a number equal to the limit": "in_features < 256",
    "an odd number of negations": "not " * 1001 + "fuse_wgrad",
}
# Expression -> the text under the caret (empty at the end), and a part of the message.
WRONG = {
    "nothing": ("", "", "expected an axis, `not` or `(`, found the end; the axes are: provider, api"),
    "an unknown axis": ("bias and color=red", "color", "expected an axis, found 'color'; the axes are: provider, api"),
    "an impossible value": ("api=module and dtype=fp8", "fp8", "dtype=fp8: expected bf16 or fp16 or fp32"),
    "an unknown api": ("api=modul", "modul", "api=modul: expected module or op or op_mlp or grouped_mm or loop"),
    "an unknown provider": ("provider=jax", "jax", "provider=jax: expected te or torch"),
    "an impossible value in parentheses": ("dtype in (bf16, fp8)", "fp8", "dtype=fp8: expected bf16"),
    "a comma list": ("dtype=bf16,fp16", ",fp16", "several values of one axis are written dtype in (bf16, fp16)"),
    "bare splits in parentheses": ("m_splits in (64,0)", "64,0)", 'a list of splits in quotes, such as "64,0,128"'),
    "no order": ("dtype < fp32", "< fp32", "the values of dtype have no order"),
    "no order of switches": ("bias > 0", "> 0", "the values of bias have no order"),
    "an axis that is no switch": ("dtype and bias", "and bias", "an operator (= != in) after dtype"),
    "a number alone": ("num_gemms", "", "an operator (= != < <= > >= in) after num_gemms"),
    "no api": ("api=", "", "expected a value of api: module or op or op_mlp or grouped_mm or loop, found the end"),
    "no value": ("dtype=", "", "expected a value of dtype: bf16 or fp16 or fp32, found the end"),
    "a keyword for a value": ("dtype=and", "and", "expected a value of dtype"),
    "no right side": ("bias and", "", "expected an axis, `not` or `(`, found the end"),
    "an open parenthesis": ("(bias", "", "expected `and`, `or` or `)`, found the end"),
    "a closed one too many": ("bias)", ")", "expected `and`, `or` or the end, found ')'"),
    "two terms side by side": ("bias api=op", "api=op", "expected `and`, `or` or the end, found 'api'"),
    "no parentheses": ("dtype in bf16", "bf16", "expected the values of dtype in parentheses"),
    "not without in": ("dtype not bf16", "bf16", "expected `in`, as in dtype not in (...)"),
    "a stray sign": ("bias & api=op", "& api", "expected `and`, `or` or the end, found '&'"),
    "an open quote": ("dtype='bf16", "'bf16", "expected a value of dtype"),
    "a quoted axis": ("'bias'", "'bias'", "expected an axis"),
    "parentheses without end": ("(" * 60, "(" * 10, "at most 50 parentheses inside each other"),
}


def place(message: str) -> str:
    """What stands at and after the caret."""
    *_, source, caret = message.splitlines()
    return source[caret.index("^") :]


@given(expressions, cases)
def test_an_expression_means_what_python_means_by_it(text: str, case: Case) -> None:
    # The text is made of COMPARISONS alone, and Python is the oracle for precedence and grouping.
    assert compile_expression(text)(case) == bool(eval(text, {}, case.axes()))  # noqa: S307


@given(expressions, cases)
def test_not_not_is_nothing(text: str, case: Case) -> None:
    assert compile_expression(f"not not ({text})")(case) == compile_expression(text)(case)


@given(expressions, expressions, cases)
def test_not_either_is_neither(one: str, other: str, case: Case) -> None:
    neither = compile_expression(f"not ({one}) and not ({other})")
    assert compile_expression(f"not (({one}) or ({other}))")(case) == neither(case)


@given(expressions, expressions, cases)
def test_not_both_is_one_or_the_other_not(one: str, other: str, case: Case) -> None:
    one_not = compile_expression(f"not ({one}) or not ({other})")
    assert compile_expression(f"not (({one}) and ({other}))")(case) == one_not(case)


@given(cases)
def test_all_axes_of_a_case_together_select_it_alone(case: Case) -> None:
    selects = compile_expression(" and ".join(f"{name}={value}" for name, value in case.axes().items()))
    assert [other for other in CASES if selects(other)] == [case]


@given(st.text("abims_=!<>(), '\"01&and or not in", max_size=30))
def test_any_text_is_compiled_or_answered_with_a_place_in_it(text: str) -> None:
    try:
        answer = str(compile_expression(text)(CASE))
    except UsageError as error:
        answer = str(error)
    assert answer in ("True", "False") or answer.endswith("^")


@pytest.mark.parametrize("text", tuple(SELECTS.values()), ids=SELECTS)
def test_an_expression_selects_a_case_it_describes(text: str) -> None:
    assert compile_expression(text)(CASE)


@pytest.mark.parametrize("text", tuple(LEAVES_OUT.values()), ids=LEAVES_OUT)
def test_an_expression_leaves_out_a_case_it_does_not_describe(text: str) -> None:
    assert not compile_expression(text)(CASE)


@pytest.mark.parametrize(("text", "at", "message"), tuple(WRONG.values()), ids=WRONG)
def test_a_wrong_expression_is_shown_with_its_place_and_what_was_expected(text: str, at: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        compile_expression(text)
    assert message in str(error.value)
    assert place(str(error.value)).startswith(at) if at else place(str(error.value)) == ""
