"""How is a report written for an issue? Markdown that GitHub renders, never longer than it accepts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters import reproduced
from gradcheck_cli.reporters.folding import Row, brackets, columns, has_known, has_path, roles_shown, rows
from gradcheck_cli.reporters.grouping import Group, groups, notes
from gradcheck_cli.reporters.marks import code as _code
from gradcheck_cli.reporters.marks import escaped as _escaped
from gradcheck_cli.reporters.marks import row as _table_row
from gradcheck_cli.reporters.plain_text import excerpt, one_line
from gradcheck_cli.reporters.summary import (
    environment_facts,
    exit_meaning,
    floor,
    gaps,
    headline,
    known,
    paired,
    proof,
    reproducer,
    title,
)
from gradcheck_cli.reporters.table import PATH_IN_WORDS, RATIO_IN_WORDS, ratio

# GitHub refuses the body of an issue or a comment that is longer than 65,536 characters.
LIMIT = 65_536
_PART = 16_000  # of each part but the last, so that every part has its say
_FRAME = 300  # what folds the list of cases, and counts those that are left out
_LONGEST_WHY = 1_000
_AXES = {"single_grouped_weight": "single\\_grouped\\_weight", "fuse_wgrad_accumulation": "fuse\\_wgrad"}
_COUNTS = ("cases", "known")


def text(report: Report) -> str:
    """`report.md`: summary, table, findings, environment; the list of cases takes what room is left."""
    parts = [_summary(report), _cut(tables(report), _PART, "rows")]
    parts.append(_cut(_findings(report), _PART, "findings"))
    parts.append(_cut(_complaints(report), _PART, "entries"))
    parts.append(_cut(_reproduced(report), _PART, "reports"))
    parts.append(_cut(_environment(report), _PART, "lines"))
    head = "\n\n".join("\n".join(part) for part in parts if part)
    return f"{head}\n\n{_cases(report, LIMIT - len(head) - _FRAME)}\n"


def _summary(report: Report) -> list[str]:
    return [
        f"# {_escaped(title(report.run))}",
        "",
        f"**{_escaped(headline(report.tally))}**",
        "",
        *([f"{_escaped(hardly)}.", ""] if (hardly := gaps(report.coverage)) else []),
        *([f"{_escaped(pairs)}.", ""] if (pairs := paired(report.pairs)) else []),
        *([f"{_escaped(proved)}.", ""] if (proved := proof(report.verdicts)) else []),
        *([f"{_escaped(said)}.", ""] if (said := known(report.verdicts)) else []),
        f"{_escaped(floor(report))}; exit code {_escaped(exit_meaning(report.exit_code))}; {report.seconds:.1f} s.",
    ]


def tables(report: Report) -> list[str]:
    """A heading and a table a provider, with what its brackets and figures mean."""
    lines: list[str] = []
    for provider, folded in rows(report.verdicts).items():
        paths, roles = has_path(folded), roles_shown(folded)
        columns = ["api", *(["path"] if paths else []), *_AXES.values(), "dtype", *_COUNTS[: 1 + has_known(folded)]]
        columns += [*map(_escaped, roles), "err/bound"]
        lines += [f"## Provider {_escaped(provider)}", "", _table_row(columns), _table_row(["---"] * len(columns))]
        lines += [_table_row(_row(row, roles, paths=paths, known=has_known(folded))) for row in folded] + [""]
        told = [PATH_IN_WORDS] * brackets(folded) + [RATIO_IN_WORDS] * any(row.largest for row in folded)
        lines += [f"{_escaped(words)}." for words in [" · ".join(told)] if words] + [""] * bool(told)
    return lines[:-1]


def _row(row: Row, roles: list[Role], *, paths: bool, known: bool) -> list[str]:
    path = [_escaped(row.path)] if paths else []
    axes = [_escaped(row.axes[axis]) for axis in (*_AXES, "dtype")]
    cells = [_mark(str(cell)) if (cell := row.roles.get(role)) else "" for role in roles]
    return [
        _escaped(row.axes["api"]),
        *path,
        *axes,
        str(row.cases),
        *([str(row.known)] if known else []),
        *cells,
        ratio(row.largest),
    ]


def _mark(said: str) -> str:
    return said if said == "ok" else f"**{_escaped(said)}**"


def _findings(report: Report) -> list[str]:
    lines = [_finding(group) for group in groups(report.verdicts)]
    for note, count in notes(report).items():
        lines.append(f"- note on {count} of the cases: {_escaped(excerpt(note, _LONGEST_WHY))}")
    return ["## Findings", "", *lines] if lines else []


def _finding(group: Group) -> str:
    finding = group.finding
    said = [f"- **{_escaped(group.title)}**: {_escaped(excerpt(finding.why, _LONGEST_WHY))}"]
    if finding.unlock:
        said.append(f"Opens with: {_escaped(excerpt(finding.unlock, _LONGEST_WHY))}")
    if finding.outcome is not Outcome.EXCLUDED:
        said.append(f"Run: {_code(one_line(reproducer(group.example)))}")
    return ". ".join(said)


def _complaints(report: Report) -> list[str]:
    lines = [f"- {_escaped(one.place)}: {_escaped(excerpt(one.why, _LONGEST_WHY))}" for one in report.complaints]
    return ["## Known failures that are not as the file says", "", *lines] if lines else []


def _reproduced(report: Report) -> list[str]:
    cells = [["<br>".join(map(_escaped, part)) for part in reproduced.parts(one)] for one in report.reproduced]
    own = [[one.name, *said, one.link] for one, said in zip(report.reproduced, cells, strict=True)]
    table = [list(reproduced.HEAD), ["---"] * len(reproduced.HEAD), *own]
    told = f"{_escaped(reproduced.summary(report.reproduced))}."
    return ["## Public reports", "", told, "", *map(_table_row, table)] if report.reproduced else []


def _environment(report: Report) -> list[str]:
    facts = environment_facts(report.environment) | report.environment.variables | report.run.options
    if report.run.chosen_because:
        facts["provider chosen by itself"] = report.run.chosen_because
    command = command_line(report.run.command)
    lines = [f"- {_escaped(name)}: {_escaped(excerpt(value, _LONGEST_WHY))}" for name, value in facts.items()]
    return [
        "## Environment",
        "",
        f"- command: {_code(command)}",
        f"- gradcheck: {_escaped(report.run.gradcheck)}",
        *lines,
    ]


def command_line(command: Sequence[str]) -> str:
    """A command as a shell takes it, in one line and not endless."""
    return excerpt(shlex.join(command), 4 * _LONGEST_WHY)


def _cases(report: Report, room: int) -> str:
    """The list of cases, folded, the gravest first: what does not fit is counted and left out."""
    gravest_first = sorted(report.verdicts, key=lambda verdict: -verdict.outcome.gravity)
    roles = columns(report.verdicts)
    head = [_table_row(["case", "outcome", *map(_escaped, roles), "s"]), _table_row(["---"] * (3 + len(roles)))]
    table = _cut([*head, *(_case(verdict, roles) for verdict in gravest_first)], room, "cases")
    summary = f"<details><summary>{len(report.verdicts)} cases, the gravest first</summary>"
    return "\n".join([summary, "", *table, "", "</details>"])


def _case(verdict: Verdict, roles: Sequence[Role]) -> str:
    outcomes = [outcome.value if (outcome := verdict.of_role(role)) else "" for role in roles]
    cells = [f"{verdict.outcome.value} (known)" if verdict.known else verdict.outcome.value, *outcomes]
    words = [_escaped("ok" if cell == Outcome.PASSED.value else cell) for cell in cells]
    return _table_row([_code(one_line(verdict.case)).replace("|", "\\|"), *words, f"{verdict.seconds:.2f}"])


def _cut(lines: list[str], room: int, what: str) -> list[str]:
    """The first lines that fit, and how many did not; a blank line ends the table they may stand in."""
    taken, used = 0, 0
    while taken < len(lines) and used + len(lines[taken]) + 1 <= room:
        used += len(lines[taken]) + 1
        taken += 1
    left_out = len(lines) - taken
    return [*lines[:taken], "", f"{left_out} more {what} left out here; all are in report.json."] if left_out else lines
