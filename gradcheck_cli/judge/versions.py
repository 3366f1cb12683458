"""Which cases are not the same under every version? Their outcomes and their failures, side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from gradcheck_cli.records.failure import faults
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.records.versions import Result, Row


def same(verdict: Verdict) -> Hashable:
    """What two verdicts share that are the same: the outcome, and every failure behind it."""
    return verdict.outcome, frozenset(faults(verdict))


def side_by_side(reports: Mapping[str, Report]) -> tuple[list[Row], dict[str, int]]:
    """The cases that are not the same in all of some reports, and how many are, by outcome."""
    verdicts = {version: {one.case: one for one in report.verdicts} for version, report in reports.items()}
    rows, alike = [], dict.fromkeys(Outcome, 0)
    for case in dict.fromkeys(case for of_version in verdicts.values() for case in of_version):
        found = {version: of_version[case] for version, of_version in verdicts.items() if case in of_version}
        first = next(iter(found.values()))
        if len(found) == len(verdicts) and len({same(one) for one in found.values()}) == 1:
            alike[first.outcome] += 1
        else:
            results = {version: _result(one) for version, one in found.items()}
            rows.append(Row(case=case, axes=first.axes, results=results))
    return rows, {outcome.value: count for outcome, count in alike.items() if count}


def _result(verdict: Verdict) -> Result:
    return Result(outcome=verdict.outcome, faults=list(faults(verdict).values()))
