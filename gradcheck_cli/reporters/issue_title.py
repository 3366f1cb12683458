"""How would an engineer name the fault? The API and its condition as one types them, then what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from gradcheck_cli.records.rule import Rule, Term
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.plain_text import excerpt
from gradcheck_cli.reporters.rules import condition

_LONGEST = 200  # GitHub takes 256 characters
_APIS = {
    ("te", "module"): "te.GroupedLinear",
    ("te", "op"): "te.ops.GroupedLinear",
    ("torch", "grouped_mm"): "torch.nn.functional.grouped_mm",
    ("torch", "loop"): "torch.nn.functional.linear per expert",
}
_SWITCHES = ("single_grouped_weight", "fuse_wgrad_accumulation", "bias")
_OP_SAYS = {"fuse_wgrad_accumulation": "accumulate_into_main_grad"}

_OF_A_GRADIENT = {
    Outcome.MISSING: "{role} MISSING, delivered nowhere after backward",
    Outcome.MISPLACED: "{role} MISPLACED, in another buffer than it belongs into",
    Outcome.NONFINITE: "{role} NONFINITE, holds NaN or infinity",
    Outcome.UNEXPECTED: "{role} UNEXPECTED, something changed that must not",
    Outcome.INEXACT: "{role} INEXACT, wrong on data that round nowhere",
    Outcome.INACCURATE: "{role} INACCURATE, outside its error bound",
    Outcome.PROTOCOL: "{role} right, its flags or dummy are not (PROTOCOL)",
    Outcome.NONDETERMINISTIC: "{role} NONDETERMINISTIC, two runs give two results",
    Outcome.VACUOUS: "{role} VACUOUS, the comparison proves nothing",
}
_OF_A_CASE = {
    Outcome.RAISED: "RAISED, an exception in place of gradients",
    Outcome.TIMED_OUT: "TIMED_OUT, does not end",
    Outcome.CRASHED: "CRASHED, the process dies",
    Outcome.NOT_THE_CASE: "NOT_THE_CASE, something else than asked ran",
}


def title(rule: Rule, axes: Mapping[str, str | int]) -> str:
    """`te.GroupedLinear(single_grouped_weight=True): wgrad MISSING, delivered nowhere after backward`.

    `axes` are those of the example, which tell the API where the rule does not.
    """
    named = f" ({rule.diagnosis})" if rule.outcome.wrong_value and rule.diagnosis else ""
    return excerpt(f"{subject(rule, axes)}: {wrong(rule)}{named}{_where(rule)}", _LONGEST)


def subject(rule: Rule, axes: Mapping[str, str | int]) -> str:
    """`te.GroupedLinear(single_grouped_weight=True)`: the call, with what of the condition is an argument."""
    arguments = [_argument(term, str(axes.get("api"))) for term in rule.terms if _is_argument(term)]
    return f"{api(axes)}({', '.join(arguments)})" if arguments else api(axes)


def api(axes: Mapping[str, str | int]) -> str:
    """`te.GroupedLinear`."""
    provider, entry = str(axes.get("provider", "")), str(axes.get("api", ""))
    return _APIS.get((provider, entry), f"{provider}:{entry}")


def wrong(rule: Rule) -> str:
    """`wgrad MISSING, delivered nowhere after backward`."""
    if rule.role == "case":
        return _OF_A_CASE.get(rule.outcome, rule.outcome.value)
    said = _OF_A_GRADIENT.get(rule.outcome) or f"{{role}}: {_OF_A_CASE.get(rule.outcome, rule.outcome.value)}"
    return said.format(role=rule.role)


def _is_argument(term: Term) -> bool:
    return term.axis in _SWITCHES and len(term.values) == 1


def _argument(term: Term, entry: str) -> str:
    name = _OP_SAYS.get(term.axis, term.axis) if entry == "op" else term.axis
    return f"{name}={bool(term.values[0])}"


def _where(rule: Rule) -> str:
    """The rest of the condition, which is no argument of the call."""
    if len(rule.exceptions) == 1:
        named = rule.exceptions[0].split(":")[2:]
        return f", with {' and '.join(named)}" if named else ""
    if rule.exceptions:
        return f", in {len(rule.exceptions)} cases that no rule covers"
    rest = [term for term in rule.terms if not _is_argument(term) and term.axis not in ("provider", "api")]
    return f", with {condition(rest)}" if rest else ""
