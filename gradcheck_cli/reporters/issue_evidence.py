"""What does the run say of the fault? When it shows, what arrives all the same, and what was put beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.failure import Failure, failure_of
from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.roles import WEIGHTS
from gradcheck_cli.records.rule import Nearest, Rule
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reporters import issue_title
from gradcheck_cli.reporters import issue_words as words
from gradcheck_cli.reporters.issue_runs import Runs, axes_as_run, cases, share
from gradcheck_cli.reporters.marks import code

_MOST = 12  # of a list
_MOST_CONTRASTS = 3
_WHAT = {
    "fprop": "the output `y = x w^T` (plus the bias) of each expert's tokens",
    "dgrad": "the gradient of the input is in `x.grad`",
    "bgrad": "the gradient of each expert's bias is in its `.grad`",
    "pgrad": "the gradient of each token's probability is in `probs.grad`",
}
_WGRAD = {
    0: "the gradient of every expert's weight, summed over the microbatches, is in `weight.grad`",
    1: "the gradient of every expert's weight has been added to what `weight.main_grad` held",
}
_LOST = (
    "A weight without its gradient is not trained: the optimiser sees no update, and a data-parallel wrapper has "
    "nothing to reduce. Nothing is raised."
)
# Without it Transformer Engine 2.15+ leaves the argument off, with a warning.
_SWITCHED_ON_BY = {("te", "single_grouped_weight"): "NVTE_GROUPED_LINEAR_SINGLE_PARAM"}


class Evidence:
    """The cases of a run in the light of one rule; `red` is the case that stands for it."""

    def __init__(self, report: Report, rule: Rule, red: Verdict, always: Mapping[str, str | int]) -> None:
        self.rule, self.red, self.variables = rule, red, report.environment.variables
        self.always = {axis: held for axis, held in always.items() if axis not in ("provider", "api")}
        self.failing = [verdict for verdict in report.verdicts if rule.shown_by(verdict) and rule.holds(verdict)]
        self.runs = Runs([one for one in report.verdicts if one.axes.get("provider") == red.axes.get("provider")])

    def kinds(self) -> list[list[Verdict]]:
        """The cases of each kind of the fault, those most like `red` first, and its own kind first."""
        found: dict[tuple[Failure, str], list[Verdict]] = {}
        for verdict in self.failing:
            finding = self._of(verdict)
            # What is missing is missing from one buffer or from another.
            where = words.seen(finding, verdict.axes) if finding.outcome is Outcome.MISSING else ""
            found.setdefault((failure_of(finding), where), []).append(verdict)
        ordered = [sorted(alike, key=self._unlike) for alike in found.values()]
        return sorted(ordered, key=lambda alike: alike[0].case != self.red.case)

    def _unlike(self, verdict: Verdict) -> int:
        return sum(verdict.axes.get(axis) != held for axis, held in self.red.axes.items())

    def head(self) -> str:
        """What is wrong with what, in one sentence: with what switches it on."""
        what = code(issue_title.subject(self.rule, self.red.axes, {} if self.rule.exceptions else self.always))
        wrong = issue_title.wrong(self.rule)
        switch = "".join(f", with {code(one)} set" for one in self._switches())
        raises = self.rule.outcome is Outcome.RAISED
        said = words.seen(self._of(self.red), self.red.axes) if raises else words.prose(wrong)
        return f"{what}{switch}: {said}."

    def _switches(self) -> list[str]:
        used = [
            variable
            for (provider, axis), variable in _SWITCHED_ON_BY.items()
            if self.red.axes.get("provider") == provider and self.red.axes.get(axis)
        ]
        return [f"{name}={self.variables[name]}" for name in used if name in self.variables]

    def kinds_in_words(self) -> list[str]:
        """A line for each kind: where it is that, and what is seen there."""
        kinds = self.kinds()
        if self.rule.outcome is Outcome.RAISED and len(kinds) == 1:
            return []
        said = []
        for alike in kinds[:_MOST]:
            one = alike[0]
            apart = ", ".join(words.value(axis, held, str(one.axes.get("api"))) for axis, held in self._apart(alike))
            where = f"{code(apart)}: " if apart else ""
            if words.has_numbers(self._of(one)):
                where += f"for example in {code(one.case)}, "
            count = f" ({cases(len(alike))})" if len(kinds) > 1 else ""
            said.append(f"- {where}{words.seen(self._of(one), one.axes)}{count}")
        more = len(kinds) - _MOST
        return [*said, f"- {more} more kinds of it; report.json has all"] if more > 0 else said

    def _of(self, verdict: Verdict) -> Finding:
        found = self.rule.shown_by(verdict)
        assert found is not None  # noqa: S101  it is one of the failing
        return found

    def _apart(self, group: Sequence[Verdict]) -> list[tuple[str, str | int]]:
        """The axes that have one value in a group, and another in every other failing case."""
        own = {verdict.case for verdict in group}
        others = [verdict for verdict in self.failing if verdict.case not in own]
        found = []
        for axis in AXES:
            held = {verdict.axes.get(axis, "") for verdict in group}
            if others and len(held) == 1 and not held & {verdict.axes.get(axis, "") for verdict in others}:
                found.append((axis, held.pop()))
        return found

    def telling(self) -> list[str]:
        """The axes that tell the cases that fail from the others, and one kind from another."""
        apart = [axis for alike in self.kinds() for axis, _ in self._apart(alike)]
        return list(dict.fromkeys([*(term.axis for term in self.rule.terms), *apart]))

    def consequence(self) -> list[str]:
        """What it means for those who train with it."""
        return [_LOST] if self.rule.role in WEIGHTS and self.rule.outcome is Outcome.MISSING else []

    def extent(self) -> list[str]:
        """In how many cases, what it does not depend on, what the run never varied, and what did not run as asked."""
        steady = self._steady()
        lines = [f"It happens in {self._counts()}{f', with {steady}' if steady else ''}."]
        if self.always:
            held = ", ".join(words.told(axis, one) for axis, one in self.always.items())
            lines.append(f"All of them had {held}: other values were not tried.")
        # Of cases that no rule covers, the one that stands for them tells what is special.
        alone = list(self.red.axes.items()) if self.rule.exceptions else []
        named = [*((one.axis, value) for one in self.rule.terms for value in one.told), *alone]
        lines += [f"{code(words.value(*one))} means: {words.meaning(*one)}." for one in named if words.meaning(*one)]
        return lines + self.runs.not_as_asked(self.failing)

    def _counts(self) -> str:
        rule = self.rule
        if rule.exceptions:
            which = "this one" if len(rule.exceptions) == 1 else "these"
            return f"{rule.elsewhere} of {rule.elsewhere_of} cases; no short condition covers {which}"
        if not rule.terms:
            return f"{share(rule.failing, rule.of)} that {'were' if rule.of > 1 else 'was'} run"
        api = [one for one in rule.terms if one.axis == "api" and len(one.values) == 1]
        told = [words.term(one, str(self.red.axes.get("api"))) for one in rule.terms if one not in api]
        told = [one for one in told if not one.startswith("provider")]
        where = f" of {code(issue_title.api(self.red.axes))}" if api else ""
        where += f" with {code(' and '.join(told))}" if told else ""
        rest = f", and in {rule.elsewhere or 'none'} of the {rule.elsewhere_of} others that were run"
        if rule.elsewhere_of < 2:
            rest = f", and {'' if rule.elsewhere else 'not '}in the one other that was run" if rule.elsewhere_of else ""
        return f"{share(rule.failing, rule.of)}{where}{rest}"

    def _values(self, axis: str) -> list[str]:
        return list(dict.fromkeys(str(axes_as_run(one).get(axis, "")) for one in self.failing))

    def _steady(self) -> str:
        """`dtype` bf16, fp16 or fp32: what the failing cases ran in several values, outside the condition."""
        if not (self.rule.exact and self.rule.failing == self.rule.of):
            return ""
        told = self.telling()
        named = {axis: has for axis in AXES if axis not in told and len(has := self._values(axis)) > 1}
        return "; ".join(
            f"{code(axis)} {_listed([words.told(axis, one, named=False) for one in has])}"
            for axis, has in named.items()
        )

    def isolation(self, near: Nearest | None) -> list[str]:
        """The case that passed beside the one that stands for the rule, and in what it differs."""
        if near is None:
            return ["No case that differs from this one in one argument alone passed in this run."]
        other = code(words.value(near.axis, near.passing))
        return [f"With {other} and nothing else changed, it passes: {code(near.case)} beside {code(near.beside)}."]

    def expected(self, near: Nearest | None) -> list[str]:
        """What must hold after backward."""
        beside = f", as with {code(words.value(near.axis, near.passing))}" if near else ""
        if self.rule.role in WEIGHTS:
            api = str(self.red.axes.get("api"))
            fused = sorted({int(bool(one.axes.get("fuse_wgrad_accumulation"))) for one in self.failing})
            told = {one: f"{code(words.value('fuse_wgrad_accumulation', one, api))}: {_WGRAD[one]}." for one in fused}
            return [f"After backward{beside}:", "", *(f"- {line}" for line in told.values())]
        if self.rule.role in _WHAT:
            return [f"After backward {_WHAT[self.rule.role]}{beside}."]
        return [f"Forward and backward come to their end, and every gradient arrives where it belongs{beside}."]

    def actual(self) -> list[str]:
        """What arrives all the same; of a case that did not come to its end, how it ended."""
        if self.rule.outcome is Outcome.RAISED:
            return ["The exception, in place of gradients."]
        if self.rule.outcome.no_end or self.rule.role == "case":
            return [f"{words.seen(self._of(self.red), self.red.axes)}."]
        ran = [one for one in self.failing if not self.runs.strayed(one)]
        right, not_all = [], []
        for role in (role for role in ROLES if role != self.rule.role):
            known = [outcome for one in ran if (outcome := one.of_role(role))]
            if known and all(outcome is Outcome.PASSED for outcome in known):
                right.append(words.ROLES[role])
            elif known:
                not_all.append(self._partly(role, known))
        said = f"; {' and '.join(right)} {'is' if len(right) == 1 else 'are'} right" if right else ""
        part = f", in the {cases(len(ran))} that ran as asked" if right and len(ran) < len(self.failing) else ""
        return [f"Forward and backward come to their end{said}{part}{''.join(f'; {one}' for one in not_all)}."]

    def _partly(self, role: Role, known: Sequence[Outcome]) -> str:
        right = known.count(Outcome.PASSED)
        return (
            f"the {words.ROLES[role]} is {f'right in {right} of {cases(len(known))}' if right else 'not right either'}"
        )

    def contrast(self) -> list[str]:
        """What other APIs of the same provider get right under the same condition, in all their cases."""
        terms = [term for term in self.rule.terms if term.axis not in ("provider", "api")]
        own = {one.axes.get("api") for one in self.failing}
        beside: dict[str, list[Verdict]] = {}
        for verdict in self.runs.verdicts:
            met = all(verdict.axes.get(term.axis) in term.values for term in terms)
            if verdict.axes.get("api") not in own and met and verdict.outcome.executed:
                beside.setdefault(issue_title.api(verdict.axes), []).append(verdict)
        under = " and ".join(words.term(term) for term in terms)
        right = {api: ran for api, ran in beside.items() if all(one.outcome is Outcome.PASSED for one in ran)}
        with_it = f" with {code(under)}" if under else ""
        return [
            f"- For contrast, {code(api)}{with_it}: all gradients are right, in {cases(len(ran))}."
            for api, ran in list(right.items())[:_MOST_CONTRASTS]
        ]


def _listed(values: Sequence[str]) -> str:
    """`bf16, fp16 and fp32`; of many, the first and their number."""
    if len(values) > _MOST:
        return f"{', '.join(values[:_MOST])} and {len(values) - _MOST} more"
    return f"{', '.join(values[:-1])} and {values[-1]}"
