"""What does the run say of the fault? When it shows, what arrives all the same, and what was put beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Rule
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reporters import issue_title, rules
from gradcheck_cli.reporters.grouping import cause
from gradcheck_cli.reporters.marks import code, escaped
from gradcheck_cli.reporters.plain_text import excerpt

_LONGEST_WHY = 1_000
_MOST = 12  # of a list
_WHAT = {
    "fprop": "the output y = x w^T (+ bias) of each expert's tokens",
    "dgrad": "the gradient of the input in `x.grad`",
    "bgrad": "the gradient of each expert's bias in its `.grad`",
}
_WGRAD = {
    0: "the weight gradient of every expert, summed over the microbatches, in `weight.grad`",
    1: "the weight gradient of every expert, added to what `weight.main_grad` held, in `weight.main_grad`",
}
_LOST = (
    "A weight without its gradient is not trained: the optimiser sees no update, and a data-parallel wrapper has "
    "nothing to reduce. Nothing is raised."
)


class Evidence:
    """The cases of a run in the light of one rule."""

    def __init__(self, report: Report, rule: Rule) -> None:
        self.rule = rule
        self.verdicts = report.verdicts
        self.failing = [verdict for verdict in report.verdicts if self._finding(verdict) and self._meets(verdict)]

    def _meets(self, verdict: Verdict) -> bool:
        if self.rule.exceptions:
            return verdict.case in self.rule.exceptions
        return all(verdict.axes.get(term.axis) in term.values for term in self.rule.terms)

    def _finding(self, verdict: Verdict) -> Finding | None:
        alike = (one for one in verdict.findings if one.outcome is self.rule.outcome)
        return next((one for one in alike if one.slot.partition("[")[0] == self.rule.role), None)

    def condition(self, axes: Mapping[str, str | int]) -> str:
        """When it happens, with the counts."""
        rule, api = self.rule, code(issue_title.subject(self.rule, axes))
        wrong = escaped(issue_title.wrong(rule))
        if rule.exceptions:
            return f"{api}: {wrong}, in {rule.elsewhere} of {rule.elsewhere_of} cases. No shorter rule covers these."
        if not rule.terms:
            return f"{api}: {wrong}, in all {rule.failing} of {rule.of} cases that were run."
        when = code(rules.condition(rule.terms))
        only = "in none" if not rule.elsewhere else f"also in {rule.elsewhere}"
        return (
            f"{api}: {wrong}. It happens in {rule.failing} of the {rule.of} cases with {when}, and {only} of the "
            f"{rule.elsewhere_of} others."
        )

    def arrival(self) -> list[str]:
        """What is wrong in each kind of failing case, and which gradients are right in them."""
        lines = [f"- {said}" for said in self._kinds()]
        for role in ROLES:
            known = [outcome for one in self.failing if role != self.rule.role and (outcome := one.of_role(role))]
            if right := known.count(Outcome.PASSED):
                others = sorted({one.value for one in known} - {Outcome.PASSED.value})
                rest = f"; it is {' or '.join(others)} in the others" if others else ""
                lines.append(f"- {role} arrives and is right in {right} of these {len(known)} cases{rest}.")
        steady = self._steady()
        if steady and self.rule.exact and self.rule.failing == self.rule.of:
            lines.append(f"- It does not depend on {steady}.")
        return [*lines, "", _LOST] if (self.rule.role, self.rule.outcome) == ("wgrad", Outcome.MISSING) else lines

    def _kinds(self) -> list[str]:
        groups: dict[str, list[Verdict]] = {}
        for verdict in self.failing:
            groups.setdefault(cause(self._of(verdict)), []).append(verdict)
        said = []
        for group in list(groups.values())[:_MOST]:
            apart = ", ".join(f"{axis}={value}" for axis, value in self._apart(group))
            where = f"{code(apart)} ({_cases(len(group))})" if apart else _cases(len(group))
            finding = self._of(group[0])
            named = f" ({escaped(finding.diagnosis)})" if finding.diagnosis else ""
            said.append(f"{where}: {finding.outcome.value}{named}: {escaped(excerpt(finding.why, _LONGEST_WHY))}")
        more = len(groups) - _MOST
        return [*said, f"{more} more kinds of it; report.json has all"] if more > 0 else said

    def _of(self, verdict: Verdict) -> Finding:
        found = self._finding(verdict)
        if found is None:
            raise ValueError(f"{verdict.case} does not show {self.rule.role} {self.rule.outcome.value}")
        return found

    def _apart(self, group: Sequence[Verdict]) -> list[tuple[str, str | int]]:
        """The axes that have one value in a group, and another in every other failing case."""
        others = [verdict for verdict in self.failing if verdict not in group]
        found = []
        for axis in AXES:
            values = {verdict.axes.get(axis, "") for verdict in group}
            if others and len(values) == 1 and not values & {verdict.axes.get(axis, "") for verdict in others}:
                found.append((axis, values.pop()))
        return found

    def _steady(self) -> str:
        """`dtype (bf16, fp16, fp32)`: what the failing cases have in several values, outside the condition."""
        told = {term.axis for term in self.rule.terms}
        values = {axis: list(dict.fromkeys(str(one.axes.get(axis, "")) for one in self.failing)) for axis in AXES}
        named = [
            f"{code(axis)} ({escaped(', '.join(has[:_MOST]))})"
            for axis, has in values.items()
            if axis not in told and len(has) > 1
        ]
        return ", ".join(named)

    def isolation(self) -> list[str]:
        """The nearest case that passed, and in what it differs."""
        near = self.rule.nearest
        if near is None:
            return ["No case one axis away from a failing one passed in this run."]
        return [
            f"Isolated by one axis: {code(near.beside)} fails, and {code(near.case)}, which differs in "
            f"{code(f'{near.axis}={near.passing}')} alone, passes: every gradient there is right, bit for bit where "
            f"nothing rounds."
        ]

    def expected(self) -> list[str]:
        """What must hold after backward."""
        near = self.rule.nearest
        beside = f", as with {code(f'{near.axis}={near.passing}')}" if near else ""
        if self.rule.role == "wgrad":
            fused = sorted({int(bool(one.axes.get("fuse_wgrad_accumulation"))) for one in self.failing})
            return [
                f"- After backward, {code(f'fuse_wgrad_accumulation={bool(one)}')}: {_WGRAD[one]}{beside}."
                for one in fused
            ]
        if self.rule.role in _WHAT:
            return [f"After backward, {_WHAT[self.rule.role]}{beside}."]
        return [f"Forward and backward come to their end, and every gradient arrives where it belongs{beside}."]

    def actual(self) -> list[str]:
        """What was found in its place, in one line each."""
        first = [self._of(one) for one in self.failing[:1]]
        ran = {role: self._right(role) for role in ROLES if role != self.rule.role}
        right = [role for role, all_right in ran.items() if all_right]
        runs = f"Forward and backward run, {' and '.join(right)} arrive and are right. " if right else ""
        return [
            f"{runs}{escaped(issue_title.wrong(self.rule))}: {escaped(excerpt(one.why, _LONGEST_WHY))}."
            for one in first
        ]

    def _right(self, role: object) -> bool:
        outcomes = [
            outcome for one in self.failing for name in ROLES if name == role and (outcome := one.of_role(name))
        ]
        # What was REFUSED there, a path for instance, was not there to be right.
        return Outcome.PASSED in outcomes and all(one.green for one in outcomes)

    def contrast(self) -> list[str]:
        """What the other APIs of the same provider do under the same condition."""
        own = {(one.axes.get("provider"), one.axes.get("api")) for one in self.failing}
        terms = [term for term in self.rule.terms if term.axis not in ("provider", "api")]
        beside: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            others = verdict.axes.get("provider") in {provider for provider, _ in own}
            named = (verdict.axes.get("provider"), verdict.axes.get("api"))
            if others and named not in own and all(verdict.axes.get(term.axis) in term.values for term in terms):
                beside.setdefault(issue_title.api(verdict.axes), []).append(verdict)
        return [self._beside(api, verdicts, rules.condition(terms)) for api, verdicts in list(beside.items())[:_MOST]]

    def _beside(self, api: str, verdicts: Sequence[Verdict], condition: str) -> str:
        ran = [verdict for verdict in verdicts if verdict.outcome.executed]
        right = sum(verdict.outcome is Outcome.PASSED for verdict in ran)
        under = f" with {code(condition)}" if condition else ""
        refused = f" ({len(verdicts) - len(ran)} more were not executed)" if len(ran) < len(verdicts) else ""
        return f"- For contrast, {code(api)}{under}: all gradients right in {right} of {_cases(len(ran))}{refused}."


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"
