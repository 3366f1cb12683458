"""Which findings tell the same story? Those of one outcome, role and cause, in however many cases."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_cli.records.failure import without_numbers
from gradcheck_cli.records.observation import DATA
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict


@dataclass(frozen=True, kw_only=True)
class Group:
    """Findings of one outcome, role and cause; `example` is the first case, in its own words."""

    provider: str
    role: str
    example: str
    finding: Finding
    cases: int
    graver: int  # of these cases, whose outcome is that of a graver finding
    counted_as: list[Outcome]  # those outcomes: the tally counts the cases there
    known: str = ""  # links, where the failure was known
    retried: int = 0  # of these cases, which cost their workers
    reproduced: int = 0  # of these, in a fresh worker

    @property
    def title(self) -> str:
        """`MISSING wgrad · 4 cases of te · untouched`; `REFUSED · 12 cases of te, 6 of which count as MISSING`."""
        role = "" if self.role == "case" else f" {self.role}"
        counted = f"{self.cases} case{'' if self.cases == 1 else 's'} of {self.provider}"
        if self.graver:
            share = "" if self.graver == self.cases else f"{self.graver} of "
            which = f"{share}which count{'s' if self.graver == 1 else ''} as"
            counted += f", {which} {' or '.join(outcome.value for outcome in self.counted_as)}"
        diagnosis = f" · {self.finding.diagnosis}" if self.finding.diagnosis else ""
        known = f" · known: {self.known}" if self.known else ""
        tried = f" · tried twice, {self.reproduced} of {self.retried} reproduced" if self.retried else ""
        return f"{self.finding.outcome.value}{role} · {counted}{diagnosis}{tried}{known}"


def groups(verdicts: list[Verdict]) -> list[Group]:
    """Every finding, in groups: the gravest first, then those of most cases."""
    alike: dict[tuple[object, ...], list[tuple[Verdict, Finding]]] = {}
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding.outcome is not Outcome.PASSED:
                alike.setdefault(_key(verdict, finding), []).append((verdict, finding))
    found = [_group(members) for members in alike.values()]
    return sorted(found, key=lambda group: (-group.finding.outcome.gravity, -group.cases))


def notes(report: Report) -> dict[str, int]:
    """What was not judged, and what else deserves a word, with the number of cases that say so."""
    said: dict[str, tuple[str, int]] = {}
    for verdict in report.verdicts:
        unjudged = [f"{DATA.get(fill, fill)}: {why}" for fill, why in verdict.channels.items() if why != "judged"]
        for note in dict.fromkeys([*unjudged, *verdict.notes]):
            first, count = said.get(without_numbers(note), (note, 0))
            said[without_numbers(note)] = (first, count + 1)
    return dict(said.values())


def _key(verdict: Verdict, finding: Finding) -> tuple[object, ...]:
    return (
        verdict.axes.get("provider"),
        finding.outcome,
        finding.role,
        cause(finding),
        finding.unlock,
        _known(verdict, finding),
    )


def cause(finding: Finding) -> str:
    """What tells two findings of one outcome and role apart."""
    return finding.diagnosis or without_numbers(finding.why)


def _group(members: list[tuple[Verdict, Finding]]) -> Group:
    verdict, finding = members[0]
    graver = {one.case: one.outcome for one, _ in members if one.outcome is not finding.outcome}
    return Group(
        provider=str(verdict.axes.get("provider", "")),
        role=finding.role,
        example=verdict.case,
        finding=finding,
        cases=len({verdict.case for verdict, _ in members}),
        graver=len(graver),
        counted_as=sorted(set(graver.values()), key=lambda outcome: -outcome.gravity),
        known=_known(verdict, finding),
        retried=sum(one.retried is not None for one, _ in members),
        reproduced=sum(bool(one.reproduced) for one, _ in members),
    )


def _known(verdict: Verdict, finding: Finding) -> str:
    return "" if finding.outcome.green else verdict.known
