"""How would an engineer name the fault? The API and its condition as one types them, then what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from gradcheck_cli.records.rule import Rule, Term
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters import issue_words as words
from gradcheck_cli.reporters.plain_text import excerpt, one_line

_LONGEST = 200  # GitHub takes 256 characters
_LONGEST_MESSAGE = 100
_APIS = {
    ("te", "module"): "te.GroupedLinear",
    ("te", "op"): "te.ops.GroupedLinear",
    ("te", "op_mlp"): "te.ops.Sequential of GroupedLinear, ScaledSwiGLU, GroupedLinear",
    ("torch", "grouped_mm"): "torch.nn.functional.grouped_mm",
    ("torch", "loop"): "torch.nn.functional.linear per expert",
    ("torch", "op_mlp"): "two torch.nn.functional.linear per expert with silu between them",
}
_SUBJECT = ("provider", "api")
# What the run held constant and no title needs: the script has them.
_SIZES = ("num_gemms", "tokens_per_expert", "in_features", "out_features", "microbatches", "seed")

Axes = Mapping[str, str | int]


def title(rule: Rule, axes: Axes, why: str = "", always: Axes | None = None) -> str:
    """`te.GroupedLinear(single_grouped_weight=True): no weight gradient (wgrad) after backward`.

    `axes` and `why` are those of the example, which tells the API and the exception; `always` is what the run never
    varied.
    """
    held = {} if rule.exceptions else always or {}
    return excerpt(f"{subject(rule, axes, held)}: {wrong(rule, why)}{_where(rule, held)}", _LONGEST)


def subject(rule: Rule, axes: Axes, always: Axes | None = None) -> str:
    """`te.GroupedLinear(single_grouped_weight=True)`: the call, with what of the condition is an argument."""
    entry = str(axes.get("api"))
    arguments = [words.term(term, entry) for term in rule.terms if _is_argument(term)]
    arguments += [words.value(axis, held, entry) for axis, held in (always or {}).items() if axis in words.SWITCHES]
    return f"{api(axes)}({', '.join(arguments)})" if arguments else api(axes)


def api(axes: Axes) -> str:
    """`te.GroupedLinear`."""
    provider, entry = str(axes.get("provider", "")), str(axes.get("api", ""))
    return _APIS.get((provider, entry), f"{provider}:{entry}")


def wrong(rule: Rule, why: str = "") -> str:
    """`no weight gradient (wgrad) after backward`; of an exception its type and the start of its words."""
    if rule.outcome is Outcome.RAISED and (said := words.raised(why)):
        return said if len(said) <= _LONGEST_MESSAGE else f"{one_line(said)[:_LONGEST_MESSAGE].rstrip()}..."
    said = words.fault(rule.role, rule.outcome, rule.diagnosis)
    return f"{said} after backward" if rule.outcome is Outcome.MISSING and rule.role != "fprop" else said


def rest(rule: Rule, always: Axes) -> list[str]:
    """The rest of the condition, which is no argument of the call: `dtype=fp16`, `m_splits!=all_empty`."""
    told = [words.term(term) for term in rule.terms if not _is_argument(term) and term.axis not in _SUBJECT]
    left_out = (*_SUBJECT, *_SIZES, *words.SWITCHES)
    return told + [words.value(axis, held) for axis, held in always.items() if axis not in left_out]


def _is_argument(term: Term) -> bool:
    return term.axis in words.SWITCHES and len(term.values) == 1


def _where(rule: Rule, always: Axes) -> str:
    if len(rule.exceptions) == 1:
        named = rule.exceptions[0].split(":")[2:]
        return f", with {' and '.join(named)}" if named else ""
    if rule.exceptions:
        return f", in {len(rule.exceptions)} cases that no rule covers"
    told = rest(rule, always)
    return f", with {' and '.join(told)}" if told else ""
