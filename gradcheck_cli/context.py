"""What do the files of a run say of a fault? Its rule, what passed next to it, and where it was reported before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gradcheck_cli import known_file, selection
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.judge.known import covers, fits
from gradcheck_cli.judge.nearest import nearest
from gradcheck_cli.judge.rules import explain
from gradcheck_cli.records.case import LAYER, Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.known import KnownFailure, Placed
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Explanation, Nearest, Rule
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import issue
from gradcheck_cli.reporters.read import environments


def begun(report: Report, case: str, folder: Path) -> issue.Told:
    """What the files of a run say of a fault."""
    explained = explain(report)
    red, rule = chosen(report, explained, case, folder)
    told = issue.Told(
        report=report,
        rule=rule,
        others=[one for one in explained.rules if one != rule],
        verdict=red,
        always=explained.always,
        near=beside(report, red, rule) or (None if case else _of_another(rule)),
    )
    return told._replace(known=recognised(rule, issue.evidence(told).failing, folder, report.environment))


def chosen(report: Report, explained: Explanation, case: str, folder: Path) -> tuple[Verdict, Rule]:
    """The red case that stands for a fault, and the rule that it is of; of the gravest where no case is named."""
    rules = explained.rules
    if not rules:
        raise NothingSelected(f"nothing to report: no case of {folder} failed, or none of those was seen to run")
    by_case = {verdict.case: verdict for verdict in report.verdicts}
    if not case:
        return by_case[rules[0].example], rules[0]
    # A case of the run as it stands there may be one of another version, which this one cannot read.
    wanted = case if case in by_case else str(selection.parse(case))
    red = by_case.get(wanted)
    if red is None:
        raise UsageError(
            f"--case {wanted}: expected a case of the run in {folder}; `gradcheck explain {folder}` names some"
        )
    rule = next((one for one in rules if one.shown_by(red) and one.holds(red)), None)
    if rule is None:
        raise UsageError(f"--case {wanted}: expected a case that failed in {folder}, found {red.outcome.value}")
    return red, rule


def beside(report: Report, red: Verdict, rule: Rule) -> Nearest | None:
    """The case of the same API that passed and is one axis away from this one."""
    alike = [one for one in report.verdicts if all(one.axes.get(name) == red.axes.get(name) for name in LAYER)]
    own = [(one, one.every_axis) for one in alike]
    return nearest([(red, red.every_axis)], own, [term.axis for term in rule.terms])


def _of_another(rule: Rule) -> Nearest | None:
    """Where nobody asked for a case: the case that passed beside another one of the same API."""
    return rule.nearest if rule.nearest and rule.nearest.axis not in LAYER else None


def like(shown: Case, red: Verdict, other: Verdict) -> Case | None:
    """The case of a script with what sets another failing case apart from the first; None where that is none."""
    apart = {axis: held for axis, held in other.axes.items() if red.axes.get(axis) != held}
    try:
        return Case.of({**shown.axes(), **apart})
    except ValueError:
        return None


def recognised(rule: Rule, failing: Sequence[Verdict], folder: Path, recorded: Environment) -> list[issue.Recognised]:
    """What the shipped known failures say of the cases of a rule, put to them as --known puts them."""
    entries = [(entry, compile_expression(entry.expression)) for entry in known_file.load(known_file.SHIPPED)]
    where = environments(folder)
    found: dict[tuple[str, str], set[str]] = {}
    for verdict in failing:
        own = [one for one in verdict.findings if one.outcome is rule.outcome and one.role == rule.role]
        with suppress(ValueError):  # of another version's axes: no entry can speak of it
            placed = Placed(case=Case.of(verdict.axes), verdict=verdict, environment=where.get(verdict.case, recorded))
            for entry, holds in entries:
                if covers(entry, holds, placed) and all(fits(entry, one) for one in own):
                    found.setdefault((entry.link, _where(entry)), set()).add(verdict.case)
    return [issue.Recognised(link, scope, len(cases)) for (link, scope), cases in found.items()]


def _where(entry: KnownFailure) -> str:
    versions = [f"{name} {specifier}" for name, specifier in entry.versions.items()]
    return ", ".join([*versions, *entry.architecture])
