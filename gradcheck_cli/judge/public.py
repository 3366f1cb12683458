"""Did the cases of public reports come out as it is recorded of them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gradcheck_cli.judge.known import applies, failures
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.failure import failure_of, named, worded
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.known import Placed
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.public import CameOut, PublicReport, Recorded, Reproduced, State
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict


class PublicRecord:
    """Reports, put to the verdicts of a run; without one it has nothing to say."""

    def __init__(self, reports: Sequence[PublicReport] = ()) -> None:
        self._reports = reports
        self._by_case: dict[str, list[tuple[PublicReport, Recorded]]] = {}
        for report in reports:
            for one in report.case:
                self._by_case.setdefault(one.case, []).append((report, one))

    def job(self, job: Job) -> Job:
        """The job with the faults that the record has for its case, and its time limit."""
        own = [one for _, one in self._by_case.get(_seedless(job.case), [])]
        mutants = list(dict.fromkeys(name for one in own for name in one.mutants))
        limit = min((one.limit for one in own if one.limit), default=0.0)
        return msgspec.structs.replace(job, mutants=mutants or job.mutants, limit=limit)

    def marked(self, placed: Placed, verdict: Verdict) -> Verdict:
        """The verdict; of a failure that is as recorded, with the links of its reports."""
        fitting = [
            report.links[0]
            for report, one in self._by_case.get(_seedless(placed.case), [])
            if applies(one, placed.environment) and holds(one, verdict)
        ]
        links = "; ".join(dict.fromkeys(fitting))
        return verdict if verdict.green or not links else msgspec.structs.replace(verdict, known=links)

    def told(self, run: Sequence[Placed]) -> list[Reproduced]:
        """Each report of which a case was asked for, with what became of those."""
        by_case = {_seedless(placed.case): placed for placed in run}
        each = [(report, list(_came_out(report, by_case))) for report in self._reports]
        return [
            Reproduced(name=report.name, title=report.title, link=report.links[0], cases=cases)
            for report, cases in each
            if cases
        ]


def _seedless(case: Case) -> str:
    """The id of a case on the data that a record means."""
    return str(msgspec.structs.replace(case, seed=0))


def holds(one: Recorded, verdict: Verdict) -> bool:
    """Whether a verdict is what is recorded: its outcome, and of a failure each finding in the role that is named.

    What was changed beside it, as the requires_grad of a weight whose gradient is missing, has no role.
    """
    if verdict.outcome is not one.outcome:
        return False
    if one.mutants:
        return (
            verdict.mutants is not None and verdict.mutants.killed == verdict.mutants.of + verdict.mutants.inapplicable
        )
    red = failures(verdict)
    return all(_role(finding) in (one.role, None) for finding in red) and (not red or any(_fits(one, it) for it in red))


def _fits(one: Recorded, finding: Finding) -> bool:
    alike = finding.outcome is one.outcome and named(finding.diagnosis) == named(one.diagnosis)
    return alike and worded(one.message) in failure_of(finding).said


def _role(finding: Finding) -> str | None:
    return finding.role if finding.role in ROLES else None


def _came_out(report: PublicReport, by_case: Mapping[str, Placed]) -> list[CameOut]:
    """Each case of a report that ran, by the entry that is about this version and device, where there is one."""
    found = []
    for case, placed in (
        (name, by_case[name]) for name in dict.fromkeys(one.case for one in report.case) if name in by_case
    ):
        own = [one for one in report.case if one.case == case]
        due = next((one for one in own if applies(one, placed.environment)), None)
        part = (due or own[0]).part
        state, said = _state(due, placed), due.said if due else ""
        told = found_as(placed.verdict, whole=state == "otherwise")
        found.append(CameOut(part=part, case=case, recorded=said, found=told, state=state))
    return found


def _state(due: Recorded | None, placed: Placed) -> State:
    if due is None:
        return "unrecorded"
    if holds(due, placed.verdict):
        return "as recorded"
    return "not executed" if placed.verdict.outcome in (Outcome.REFUSED, Outcome.EXCLUDED) else "otherwise"


def found_as(verdict: Verdict, *, whole: bool) -> str:
    """How a case came out, by its worst finding; as a whole by one of each role, since any may be the one too many."""
    worst = verdict.worst
    if worst is None or verdict.outcome.green:
        return verdict.outcome.value
    roles = {_role(worst): worst}
    for finding in failures(verdict) if whole else ():
        roles.setdefault(_role(finding), finding)
    return " and ".join(str(failure_of(one)).removeprefix("case ") for one in roles.values())
