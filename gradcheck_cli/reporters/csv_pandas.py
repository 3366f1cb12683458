"""How is a report written as a table for other programs? One row a case, every axis a column."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.records.case import AXES
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters import folding
from gradcheck_cli.reporters.plain_text import one_line

_BEFORE = ("case",)
_ROWS = 2_000
_FORMULA = ("=", "+", "-", "@")
_AFTER = (
    "worst_slot",
    "worst_ratio",
    "diagnosis",
    "mutants_killed",
    "mutants_of",
    "seconds",
    "retried",
    "reproduced",
    "known",
)


def text(report: Report) -> str:
    """`report.csv`; a cell is empty where there is nothing to say (bgrad without bias, a ratio nobody measured)."""
    return "".join(parts(report))


def parts(report: Report) -> Iterator[str]:
    """The same, some thousand rows after the other."""
    # Here and nowhere else: pandas takes longer to import than all the rest of gradcheck.
    import pandas as pd

    # Axes that this version does not know come from a report of a later one.
    later = {axis: None for verdict in report.verdicts for axis in verdict.axes if axis not in AXES}
    columns = [*_BEFORE, *AXES, *later, "outcome", *folding.columns(report.verdicts), *_AFTER]
    # dtype=object keeps whole numbers whole beside empty cells.
    for first in range(0, len(report.verdicts) or 1, _ROWS):
        some = [_row(verdict) for verdict in report.verdicts[first : first + _ROWS]]
        frame = pd.DataFrame(some, columns=columns, dtype=object).map(_cell).rename(columns=_cell)
        yield frame.to_csv(index=False, header=not first, lineterminator="\n")


def _cell(value: object) -> object:
    """What a cell holds: of a text one line, and none that a spreadsheet would take for a formula.

    An apostrophe before it makes a text of it (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return f"'{line}" if line.startswith(_FORMULA) else line


def _row(verdict: Verdict) -> dict[str, str | int | float | None]:
    slot, ratio = _worst(verdict)
    return {
        "case": verdict.case,
        **verdict.axes,
        "outcome": verdict.outcome.value,
        **{role: outcome.value for role in ROLES if (outcome := verdict.of_role(role))},
        "worst_slot": slot,
        "worst_ratio": ratio,
        "diagnosis": one_line(verdict.worst.diagnosis) if verdict.worst else None,
        "mutants_killed": verdict.mutants.killed if verdict.mutants else None,
        "mutants_of": verdict.mutants.of if verdict.mutants else None,
        "seconds": round(verdict.seconds, 6),
        "retried": verdict.retried.value if verdict.retried else None,
        "reproduced": None if verdict.reproduced is None else int(verdict.reproduced),
        "known": one_line(verdict.known) or None,
    }


def _worst(verdict: Verdict) -> tuple[str | None, float | None]:
    """The slot behind the outcome with its ratio; of a case that passed, the slot nearest to its bound."""
    if verdict.worst and not verdict.outcome.green:
        return verdict.worst.slot, verdict.worst.ratio
    # What ran where a case was refused is not what the row names.
    margin = None if verdict.outcome is Outcome.REFUSED else verdict.worst_margin
    return (margin.slot, margin.ratio) if margin else (None, None)
