"""How is a rule told? A sentence with its counts, then a case to run and the nearest one that passed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.rule import Explanation, Rule, Term
from gradcheck_cli.reporters import summary
from gradcheck_cli.reporters.marks import code, escaped
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.table import style

_MOST_RULES = 20
_MOST_LISTED = 20


def require(form: str) -> None:
    """UsageError for a format that there is not."""
    if form not in FORMATS:
        raise UsageError(f"unknown format {form!r}: expected {' or '.join(FORMATS)}")


def show(told: Explanation, form: str, console: Console) -> None:
    """Print an explanation in one of FORMATS."""
    if form == "text":
        _print(told, console)
    else:
        console.print(Text(_WRITTEN[form](told).rstrip("\n")), soft_wrap=True)


def title(rule: Rule) -> str:
    """`wgrad MISSING iff api=module and single_grouped_weight=1`, for the title of a bug report."""
    return _sentence(rule, fault(rule))


def fault(rule: Rule) -> str:
    """`wgrad MISSING`; the outcome alone where it is of the whole case."""
    return " ".join(part for part in (_role(rule), rule.outcome.value) if part)


def condition(terms: list[Term]) -> str:
    """`api=module and dtype in (bf16, fp16)`: as `-k` takes it."""
    return " and ".join(map(str, terms))


def markdown(told: Explanation) -> str:
    """A heading, a paragraph a rule, and its facts in a list."""
    lines = [f"# {escaped(summary.title(told.run))}", "", *(escaped(line) for line in _head(told))]
    for rule in told.rules[:_MOST_RULES]:
        said = f"{code(_role(rule))} " if _role(rule) else ""
        lines += ["", f"**{said}{escaped(_support(rule, rule.outcome.value))}**", ""]
        lines += [f"- {name}: {_marked(name, value)}" for name, value in _facts(rule)]
    lines += [part for more in _more(told) for part in ("", escaped(more))]
    lines += ["", f"Environment: {escaped(summary.environment_line(told.environment))}"]
    return "\n".join(lines) + "\n"


def json(told: Explanation) -> str:
    """The record itself, indented."""
    return msgspec.json.format(to_json(told), indent=2) + "\n"


_WRITTEN: dict[str, Callable[[Explanation], str]] = {"markdown": markdown, "json": json}
FORMATS = ("text", *_WRITTEN)


def sentence(rule: Rule) -> str:
    """`wgrad MISSING iff api=module; 48 of 48 cases with it, 0 of 336 without`."""
    return _support(rule, fault(rule))


def _print(told: Explanation, console: Console) -> None:
    for head in _head(told):
        console.print(Text(head, style="bold"))
    for rule in told.rules[:_MOST_RULES]:
        console.print()
        console.print(Text(sentence(rule), style=style(rule.outcome)))
        for name, value in _facts(rule):
            line = Text(f"{name}: {one_line(value)}")
            # What will be copied stays in one line.
            if name in ("diagnosis", "message"):
                console.print(Padding(line, (0, 0, 0, 2)))
            else:
                console.print(Text("  ").append_text(line), soft_wrap=True)
    for more in _more(told):
        console.print(f"\n{more}")
    console.print()
    console.print(Text(summary.environment_line(told.environment), style="dim"))


def _head(told: Explanation) -> list[str]:
    executed = f"executed {told.executed} of {told.asked} asked"
    if not told.failing:
        return [f"{executed}; every one is green: there is no failure to explain" if told.executed else executed]
    lines = [f"{executed}; {told.failing} not green"]
    if told.never_run:
        lines.append(f"{told.never_run} of these were never seen to run: no rule speaks of them")
    # The provider stands in the line of the environment.
    if shared := ", ".join(f"{axis}={value}" for axis, value in told.always.items() if axis != "provider"):
        lines.append(f"in this run always: {shared}; the rules speak of nothing else")
    return lines


def _more(told: Explanation) -> list[str]:
    """How many rules there are that are not told here: of a run with so many faults, the gravest come first."""
    left = [fault(rule) for rule in told.rules[_MOST_RULES:]]
    counted = ", ".join(f"{left.count(one)} {one}" for one in dict.fromkeys(left))
    return [f"... and {len(left)} more, all with --format json: {counted}"] if left else []


def _support(rule: Rule, said: str) -> str:
    shown = f"{rule.elsewhere} of {rule.elsewhere_of}"
    if not rule.found:
        count = len(rule.exceptions)
        rest = "" if count == rule.elsewhere else " other"
        return f"{said}: no rule was found for {count}{rest} case{'' if count == 1 else 's'}; {shown} have this fault"
    if not rule.terms:
        return f"{_sentence(rule, said)}: {rule.failing} of {rule.of}"
    return f"{_sentence(rule, said)}; {rule.failing} of {rule.of} cases with it, {shown} without"


def _sentence(rule: Rule, said: str) -> str:
    if not rule.found:
        return f"{said} in {len(rule.exceptions)} case{'' if len(rule.exceptions) == 1 else 's'}"
    if not rule.terms:
        return f"{said} in every case"
    return f"{said} {'iff' if rule.exact else 'if'} {condition(rule.terms)}"


def _facts(rule: Rule) -> list[tuple[str, str]]:
    facts = [("diagnosis", rule.diagnosis)] if rule.diagnosis else []
    facts += [("message", rule.message)] if rule.message else []
    if rule.found:
        facts.append(("example", summary.reproducer(rule.example)))
    facts += [("case", case) for case in rule.exceptions[:_MOST_LISTED]]
    if len(rule.exceptions) > _MOST_LISTED:
        facts.append(("and more", f"{len(rule.exceptions) - _MOST_LISTED}, all with --format json"))
    if rule.nearest:
        near = rule.nearest
        changed = f"{near.axis}={near.passing} in place of {near.failing}"
        beside = "" if near.beside == rule.example else f" in {near.beside}"
        facts += [("nearest that passed", near.case), ("differs in", f"{changed}{beside}")]
    return facts


def _marked(name: str, value: str) -> str:
    return escaped(value) if name in ("diagnosis", "and more") else code(one_line(value))


def _role(rule: Rule) -> str:
    return "" if rule.role == "case" else rule.role
