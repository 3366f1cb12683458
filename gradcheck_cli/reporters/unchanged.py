"""Do the parts of a report agree with each other, as they did when it was written?"""

from __future__ import annotations

from pathlib import Path

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.report import Report, tally
from gradcheck_cli.records.verdict import Outcome, Verdict, gravest


def unchanged(report: Report, path: Path) -> Report:
    """The report, where its parts agree with each other; UsageError where somebody changed one of them."""
    named_once(report.verdicts, path)
    wrong = [verdict.case for verdict in report.verdicts if verdict.findings and verdict.outcome != _gravest(verdict)]
    if wrong:
        raise UsageError(
            f"{path} was changed after it was written: the outcome of {wrong[0]} is not its gravest finding"
        )
    counted = tally(report.verdicts)
    if report.tally != counted:
        raise UsageError(
            f"{path} was changed after it was written: expected {counted.outcomes}, as its verdicts say, "
            f"found {report.tally.outcomes}"
        )
    return report


def named_once(verdicts: list[Verdict], path: Path) -> None:
    """UsageError where an id is not that of its axes, or stands twice."""
    seen: set[str] = set()
    for verdict in verdicts:
        if verdict.case in seen:
            raise UsageError(f"{path} was changed after it was written: expected {verdict.case} once, found it twice")
        seen.add(verdict.case)
        missing = [name for name in ("provider", "api") if not isinstance(verdict.axes.get(name), str)]
        if missing:
            raise UsageError(
                f"{path} was changed after it was written: expected the {missing[0]} of {verdict.case} among its axes, "
                f"found none"
            )
        said = _id(verdict.axes)
        if said not in {"", verdict.case}:
            raise UsageError(
                f"{path} was changed after it was written: expected {said}, as the axes say, found {verdict.case}"
            )


def _id(axes: dict[str, str | int]) -> str:
    """The id of these axes; "" where this version does not know one of them, or a value."""
    try:
        return str(Case.of(axes))
    except ValueError:
        return ""


def _gravest(verdict: Verdict) -> Outcome:
    return gravest([finding.outcome for finding in verdict.findings])
