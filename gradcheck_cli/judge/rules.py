"""Which rule is behind each group of failures? One group for all that fail alike; one rule a group, or a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec

from gradcheck_cli.judge.boxes import Point, cases, mask, members
from gradcheck_cli.judge.conjunction import conjunctions
from gradcheck_cli.judge.nearest import nearest, simplicity
from gradcheck_cli.records.case import AXES, DEFAULTS
from gradcheck_cli.records.failure import failure_of, named
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Explanation, Rule, Term
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict

Cause = tuple[str, ...]  # a diagnosis, and where an exception was raised with which words, as they are compared


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cases that show one fault: their numbers in the list of verdicts, and what it is called in each."""

    role: str
    outcome: Outcome
    names: dict[int, str]
    message: str = ""  # of an exception

    @property
    def diagnosis(self) -> str:
        """Its name; where cases differ, without what differs from case to case, and each kind once."""
        names = sorted(set(self.names.values()))
        return " or ".join(names if len(names) == 1 else dict.fromkeys(map(named, names)))


def explain(report: Report) -> Explanation:
    """The rules of a run, beside what they speak of."""
    failing = [verdict for verdict in report.verdicts if not verdict.outcome.green]
    return Explanation(
        run=report.run,
        environment=report.environment,
        asked=report.tally.asked,
        executed=report.tally.executed,
        failing=len(failing),
        never_run=sum(not _faults(verdict) for verdict in failing),
        rules=rules(report.verdicts),
        always=always(report.verdicts),
    )


def always(verdicts: Sequence[Verdict]) -> dict[str, str | int]:
    """Axes that have one value in all executed cases, where it is not the default: no rule can tell what they do."""
    points = [verdict.every_axis for verdict in verdicts if verdict.outcome.executed]
    values = {axis: {point.get(axis, "") for point in points} for axis in AXES}
    shared = {axis: one for axis, (one, *others) in ((a, list(v)) for a, v in values.items() if v) if not others}
    return {axis: value for axis, value in shared.items() if value != DEFAULTS.get(axis)}


def rules(verdicts: Sequence[Verdict]) -> list[Rule]:
    """The rules of every group: the gravest first, then those of most cases."""
    found: dict[tuple[str, Outcome], dict[Cause, Group]] = {}
    for number, verdict in enumerate(verdicts):
        for finding in _faults(verdict):
            failure = failure_of(finding)
            role, outcome, *cause = failure.key
            alike = found.setdefault((role, outcome), {})
            new = Group(role=role, outcome=outcome, names={}, message=failure.said)
            group = alike.setdefault(tuple(cause), new)
            group.names.setdefault(number, finding.diagnosis)
    _without_echoes(found)
    every = [ruled for alike in found.values() if alike for ruled in _ruled(verdicts, list(alike.values()))]
    return [rule for ruled in sorted(every, key=lambda ruled: _order(*ruled)) for rule in ruled[1]]


def _without_echoes(found: dict[tuple[str, Outcome], dict[Cause, Group]]) -> None:
    """Leave out the wrong values on random data that integers showed in the same cases as well: it is one cause."""
    wrong = sorted((key for key in found if key[1].wrong_value), key=lambda key: -key[1].gravity)
    for graver, milder in combinations(wrong, 2):
        alike = found[graver].keys() & found[milder].keys() if graver[0] == milder[0] else ()
        for cause in alike:
            if found[milder][cause].names.keys() <= found[graver][cause].names.keys():
                del found[milder][cause]


def _order(group: Group, _: list[Rule]) -> tuple[int, int]:
    return -group.outcome.gravity, -len(group.names)


def _ruled(verdicts: Sequence[Verdict], apart: list[Group]) -> list[tuple[Group, list[Rule]]]:
    """Groups of one role and outcome with their rules: as one, where one exact rule says it in fewer terms than any.

    What a missing gradient's buffer holds instead follows from the case: `none` and `untouched` are one fault. Any two
    others are two faults, also where one rule would cover both.
    """
    each = [(group, _rules(verdicts, group)) for group in apart]
    if len(apart) == 1 or apart[0].outcome is not Outcome.MISSING:
        return each
    names: dict[int, str] = {}
    for group in reversed(apart):
        names |= group.names
    together = Group(role=apart[0].role, outcome=apart[0].outcome, names=names)
    told = _rules(verdicts, together)
    fewest = min(len(rule.terms) if rule.exact else len(AXES) for _, ruled in each for rule in ruled)
    return [(together, told)] if told[0].exact and len(told[0].terms) < fewest else each


def _rules(verdicts: Sequence[Verdict], group: Group) -> list[Rule]:
    numbers = [number for number, verdict in enumerate(verdicts) if number in group.names or _speaks(verdict, group)]
    points = [verdicts[number].every_axis for number in numbers]
    axes = [*AXES, *sorted({axis for point in points for axis in point} - set(AXES))]
    whole = [_whole(point, axes) for point in points]
    among = cases(whole, axes)
    failing = mask([place for place, number in enumerate(numbers) if number in group.names])
    rows = [(verdicts[number], point) for number, point in zip(numbers, whole, strict=True)]
    found = conjunctions(among, failing)
    covered = 0
    told = []
    for box in found:
        covered |= box.inside()
        told.append(_rule(group, rows, box.terms(), failing, box.inside()))
    left = failing & ~covered
    return [*told, _no_rule(group, rows, failing, left)] if left else told


def _rule(group: Group, rows: list[tuple[Verdict, Point]], terms: list[Term], failing: int, inside: int) -> Rule:
    """A rule with its counts, its simplest case, and the case that passes beside one of its cases."""
    shown = [rows[number] for number in members(failing & inside)]
    return Rule(
        role=group.role,
        outcome=group.outcome,
        diagnosis=group.diagnosis,
        message=group.message,
        terms=terms,
        failing=len(shown),
        of=inside.bit_count(),
        elsewhere=(failing & ~inside).bit_count(),
        elsewhere_of=len(rows) - inside.bit_count(),
        example=min(shown, key=lambda row: (_behind(row[0], group), simplicity(row[1])))[0].case,
        nearest=nearest(shown, rows, [term.axis for term in terms]),
    )


def _behind(verdict: Verdict, group: Group) -> bool:
    """Whether a case fails first of all in another way: what is run of it, and shown, would be that."""
    worst = verdict.worst
    return worst is None or (worst.role, worst.outcome) != (group.role, group.outcome)


def _no_rule(group: Group, rows: list[tuple[Verdict, Point]], failing: int, left: int) -> Rule:
    """What stands for the cases that no rule covers."""
    alone = _rule(group, rows, [], failing, left)
    exceptions = [rows[number][0].case for number in members(left)]
    return msgspec.structs.replace(
        alone, failing=0, of=0, elsewhere=failing.bit_count(), elsewhere_of=len(rows), exceptions=exceptions
    )


def _faults(verdict: Verdict) -> list[Finding]:
    """The findings that say something of the candidate: a case that never came to run says nothing."""
    return [finding for finding in verdict.red if finding.outcome is not Outcome.UNTESTED or finding.slot != "case"]


def _speaks(verdict: Verdict, group: Group) -> bool:
    """Whether a case came to where the fault could show: one that crashed says nothing of its gradients."""
    if group.outcome.gravity >= Outcome.RAISED.gravity:
        return verdict.outcome.executed
    judged = verdict.outcome.executed and verdict.outcome.gravity < Outcome.RAISED.gravity
    # A case without a bias cannot show a wrong bgrad.
    return judged and all(role != group.role or verdict.of_role(role) is not None for role in ROLES)


def _whole(point: Point, axes: Sequence[str]) -> Point:
    """A case by each of these axes; most name all of them, and are taken as they are."""
    return point if point.keys() >= set(axes) else {axis: point.get(axis, "") for axis in axes}
