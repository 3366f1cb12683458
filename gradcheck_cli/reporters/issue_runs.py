"""What ran of what was asked, in a small table and in words: nothing is called right that never ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.rule import Term
from gradcheck_cli.records.verdict import Outcome, Verdict, gravest
from gradcheck_cli.reporters import issue_title
from gradcheck_cli.reporters import issue_words as words
from gradcheck_cli.reporters.marks import code, escaped, row
from gradcheck_cli.reporters.plain_text import excerpt

_MOST_ROWS = 24
_LONGEST = 300


def cases(count: int) -> str:
    """`1 case`, `2 cases`."""
    return f"{count} case{'' if count == 1 else 's'}"


def share(failing: int, of: int) -> str:
    """`all 36 cases`, `the one case`, `3 of the 36 cases`."""
    every = f"all {of} cases" if of > 1 else "the one case"
    return every if failing == of else f"{failing} of the {of} cases"


def axes_as_run(verdict: Verdict) -> dict[str, str | int]:
    """The axes of a case with what really ran, as far as it was seen."""
    return {**verdict.axes, **{axis: ran for axis, ran in verdict.effective.items() if axis in verdict.axes}}


class Runs:
    """The cases of one provider."""

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self.verdicts = verdicts

    def strayed(self, verdict: Verdict) -> dict[str, str | int]:
        """What ran where something else was asked, by axis; a path that was left open cannot stray."""
        return {
            axis: ran
            for axis, ran in verdict.effective.items()
            if verdict.axes.get(axis, ran) not in (ran, "auto") and verdict.outcome is not Outcome.NOT_THE_CASE
        }

    def not_as_asked(self, failing: Sequence[Verdict]) -> list[str]:
        """A sentence for each way in which cases did not run as asked."""
        ways: dict[str, list[Verdict]] = {}
        for one in self.verdicts:
            for axis, ran in self.strayed(one).items():
                asked = code(words.value(axis, one.axes[axis]))
                way = f"asked for {asked} and {'silently ' * self._silent(one)}ran {code(words.value(axis, ran))}"
                ways.setdefault(way, []).append(one)
        told = [self._way(way, alike, failing) for way, alike in ways.items()]
        rest = [one for one in self.verdicts if not one.outcome.executed and not self.strayed(one)]
        refused = [one for one in rest if one.outcome is Outcome.REFUSED]
        if refused:
            why = excerpt(refused[0].worst.why, _LONGEST) if refused[0].worst else ""
            told.append(f"{cases(len(refused))} were refused and not run: {words.prose(why)}.")
        never = sum(one.outcome is Outcome.UNTESTED for one in rest)
        return told + ([f"{cases(never)} never ran."] if never else [])

    def _silent(self, verdict: Verdict) -> bool:
        return any("without a word" in finding.why for finding in verdict.findings)

    def _way(self, way: str, alike: Sequence[Verdict], failing: Sequence[Verdict]) -> str:
        fail = {one.case for one in failing}
        among = sum(one.case in fail for one in alike)
        common = [(axis, alike[0].axes.get(axis, "")) for axis in AXES if self._sets_apart(axis, alike)]
        where = " and ".join(code(words.value(axis, held)) for axis, held in common)
        counted = f"{among} of them {'is' if among == 1 else 'are'} among those that fail" if among else ""
        unjudged = len(alike) - among
        others = f"{'the other ' * bool(among)}{unjudged} {'was' if unjudged == 1 else 'were'} not judged"
        parts = [counted, others if unjudged else ""]
        with_it = f" with {where}" if where else ""
        return f"{cases(len(alike))}{with_it} {way}; {', '.join(one for one in parts if one)}."

    def _sets_apart(self, axis: str, alike: Sequence[Verdict]) -> bool:
        """Whether all of these have one value on an axis that others have in another, where it says something."""
        held = {one.axes.get(axis, "") for one in alike}
        others = {one.axes.get(axis, "") for one in self.verdicts}
        return len(held) == 1 < len(others) and axis not in ("api", "provider", "path")

    def table(self, axes: Sequence[str], terms: Sequence[Term], api: str) -> list[str]:
        """Every case that ran, folded onto a few axes: what each gradient is; of one API where all are too many."""
        shown = [axis for axis in AXES if axis in axes and axis not in ("provider", "api")]
        folded = self._folded(shown, terms)
        if len(folded) > _MOST_ROWS:
            folded = {key: group for key, group in folded.items() if key[0] == api}
        roles = [role for role in ROLES if any(one.of_role(role) for group in folded.values() for one in group)]
        lines = [row(["layer", *map(code, shown), "cases", *(words.ROLES[role] for role in roles)])]
        lines.append(row(["---"] * (2 + len(shown) + len(roles))))
        for key, group in list(folded.items())[:_MOST_ROWS]:
            lines.append(row([*map(code, key), str(len(group)), *(self._cell(role, group) for role in roles)]))
        said = "\n".join(lines)
        legend = [f"{word}: {meaning}" for word, meaning in _LEGEND.items() if f"**{word}" in said]
        more = len(folded) - _MOST_ROWS
        rest = [f"{more} more rows are in report.json"] if more > 0 else []
        return [*lines, "", f"{'; '.join([*legend, *rest])}."] if legend or rest else lines

    def _folded(self, shown: Sequence[str], terms: Sequence[Term]) -> dict[tuple[str, ...], list[Verdict]]:
        """The cases by layer and axes; an axis of which a rule names several values is told by whether it is met."""
        several = {one.axis: one for one in terms if len(one.values) > 1}
        folded: dict[tuple[str, ...], list[Verdict]] = {}
        for one in self.verdicts:
            ran = axes_as_run(one)
            cells = [self._value(axis, ran.get(axis, ""), several.get(axis)) for axis in shown]
            if one.outcome.executed:
                folded.setdefault((issue_title.api(one.axes), *cells), []).append(one)
        return folded

    def _value(self, axis: str, held: str | int, term: Term | None) -> str:
        if term and held in term.values:
            return words.term(term).removeprefix(axis).strip()
        return words.plain(axis, held)

    def _cell(self, role: Role, group: Sequence[Verdict]) -> str:
        outcomes = [one.of_role(role) for one in group]
        known: list[Outcome] = [one for one in outcomes if one and one is not Outcome.REFUSED]
        if not known:
            return ""
        worst = gravest(known)
        if worst is Outcome.PASSED:
            return "right"
        count = f" in {known.count(worst)} of {len(known)}" if known.count(worst) < len(known) else ""
        return f"**{escaped(_SHORT.get(worst, worst.value.lower()))}{count}**"


_LEGEND = {
    "wrong": "differs on integers, whose sums round nowhere or in a known way",
    "inaccurate": "differs from fp64 by more than roundings may add up to",
}
_SHORT: Mapping[Outcome, str] = {
    Outcome.MISSING: "none",
    Outcome.MISPLACED: "in another buffer",
    Outcome.NONFINITE: "NaN or infinity",
    Outcome.INEXACT: "wrong",
    Outcome.INACCURATE: "inaccurate",
    Outcome.UNEXPECTED: "changed what it must not",
    Outcome.PROTOCOL: "wrong flag, shape or dtype",
    Outcome.NONDETERMINISTIC: "differs between two runs",
    Outcome.VACUOUS: "proves nothing",
    Outcome.UNTESTED: "not compared",
    Outcome.RAISED: "exception",
    Outcome.TIMED_OUT: "does not end",
    Outcome.CRASHED: "process dies",
}
