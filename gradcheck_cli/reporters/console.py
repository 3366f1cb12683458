"""What does a person read when the run is over? The table, the findings, the summary."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gradcheck_cli.errors import HarnessError
from gradcheck_cli.records.known import Complaint
from gradcheck_cli.records.public import Reproduced
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters import reproduced
from gradcheck_cli.reporters.clean_console import CleanConsole
from gradcheck_cli.reporters.folding import rows
from gradcheck_cli.reporters.grouping import Group, groups, notes
from gradcheck_cli.reporters.lines import folded
from gradcheck_cli.reporters.plain_text import excerpt, one_line
from gradcheck_cli.reporters.protocol import Silent
from gradcheck_cli.reporters.standard_output import PatientOutput
from gradcheck_cli.reporters.summary import (
    environment_line,
    exit_meaning,
    floor,
    gaps,
    headline,
    known,
    paired,
    proof,
    reproducer,
)
from gradcheck_cli.reporters.table import draw, legend, style

_WIDTH_OF_A_LOG = 100
_MOST_GROUPS = 20
_MOST_NOTES = 8
_LONGEST_WHY = 500


def open_console() -> Console:
    """Standard output, as wide as the terminal; 100 columns where there is none."""
    output = cast("TextIO", PatientOutput(sys.stdout))
    if sys.stdout.isatty():
        return CleanConsole(file=output)
    # COLUMNS, where it is set, else a width that most logs show whole.
    return CleanConsole(file=output, width=shutil.get_terminal_size((_WIDTH_OF_A_LOG, 25)).columns)


def require_printed(console: Console) -> None:
    """HarnessError where standard output failed, for a command of which nothing else is left."""
    failure = console.file.failure if isinstance(console.file, PatientOutput) else None
    if failure:
        raise HarnessError(
            f"expected to print the report whole, found {failure.strerror or failure}: "
            f"make room where standard output goes, or send it elsewhere"
        ) from failure


class ConsoleReporter(Silent):
    """Prints a finished report; what it was told of from the beginning ends here, anything else ended long ago."""

    def __init__(self, console: Console, folder: Path | None, *, judged_from: Path | None = None) -> None:
        self._console = console
        self._folder = folder
        self._judged_from = judged_from
        self._from_the_beginning = False

    def opened(self, run: Run, cases: Sequence[str]) -> None:  # noqa: ARG002
        """Take note that the run is one that goes on now."""
        self._from_the_beginning = True

    def closed(self, report: Report) -> None:
        """The table of each provider, the findings in groups, the notes, the summary."""
        drawn = [draw(self._console, provider, alike) for provider, alike in rows(report.verdicts).items()]
        for number, one in enumerate(drawn):
            if number:
                self._console.print()
            self._console.print(one.table)
        if told := legend(drawn):
            self._console.print()
            self._console.print(Text(told, style="dim"))
        self._findings(groups(report.verdicts))
        self._notes(notes(report))
        self._complaints(report.complaints)
        self._reproduced(report.reproduced)
        self._summary(report)

    def _findings(self, found: list[Group]) -> None:
        for group in found[:_MOST_GROUPS]:
            self._console.print()
            self._group(group)
        if len(found) > _MOST_GROUPS:
            self._console.print(f"\n... and {len(found) - _MOST_GROUPS} more groups of findings, all in report.json")

    def _group(self, group: Group) -> None:
        finding = group.finding
        self._console.print(Text(one_line(group.title), style="yellow" if group.known else style(finding.outcome)))
        self._indented("why", excerpt(finding.why, _LONGEST_WHY))
        if finding.unlock:
            self._indented("opens with", excerpt(finding.unlock, _LONGEST_WHY))
        if finding.outcome is not Outcome.EXCLUDED:
            # Unwrapped, so that it can be copied whole.
            self._console.print(Text(f"  run: {one_line(reproducer(group.example))}"), soft_wrap=True)

    def _indented(self, label: str, said: str) -> None:
        self._console.print(Padding(Text(f"{label}: {said}"), (0, 0, 0, 2)))

    def _notes(self, said: dict[str, int]) -> None:
        if not said:
            return
        self._console.print(Text("\nnotes", style="bold"))
        for note, count in list(said.items())[:_MOST_NOTES]:
            self._indented(f"{count} of the cases", excerpt(note, _LONGEST_WHY))
        if len(said) > _MOST_NOTES:
            self._indented("...", f"and {len(said) - _MOST_NOTES} more, all in report.json")

    def _complaints(self, told: list[Complaint]) -> None:
        if told:
            self._console.print(Text("\nknown failures that are not as the file says", style="bold red"))
        for complaint in told:
            # One line each, unwrapped: the place is what an editor or a log is searched for.
            self._console.print(Text(f"  {one_line(f'{complaint.place}: {complaint.why}')}"), soft_wrap=True)

    def _reproduced(self, found: list[Reproduced]) -> None:
        if found:
            self._console.print()
            self._console.print(reproduced.table(found, self._console.width))
            self._parts(reproduced.summary(found), style="bold")

    def _summary(self, report: Report) -> None:
        self._console.print()
        self._parts(headline(report.tally), style="bold")
        if hardly := gaps(report.coverage):
            self._parts(hardly)
        if pairs := paired(report.pairs):
            self._parts(pairs)
        if proved := proof(report.verdicts):
            self._parts(proved)
        if said := known(report.verdicts):
            self._parts(said)
        self._console.print(Text(floor(report), style="" if report.floor_met else "bold red"))
        self._parts(one_line(environment_line(report.environment)))
        if report.run.chosen_because:
            self._console.print(Text(f"provider chosen by itself: {one_line(report.run.chosen_because)}"))
        for name, value in (report.environment.variables | report.run.options).items():
            self._console.print(Text(one_line(f"{name}={value}")), soft_wrap=True)
        if where := self._where():
            self._console.print(Text(folded(where, self._console.width)), soft_wrap=True)
        self._parts(self._ended(report), style="bold green" if report.exit_code == 0 else "bold red")

    def _where(self) -> str:
        if self._judged_from is not None:
            return f"judged from {self._judged_from}; nothing written"
        return "" if self._folder is None else _files(self._folder)

    def _ended(self, report: Report) -> str:
        """The code that this command ends with, or the one that the run did: a report is rendered with exit code 0."""
        meaning = exit_meaning(report.exit_code)
        if self._judged_from is not None:
            return f"exit code {meaning}"
        if self._from_the_beginning:
            return f"exit code {meaning} · {report.seconds:.1f} s"
        return f"the run's exit code was {meaning} · it took {report.seconds:.1f} s"

    def _parts(self, line: str, style: str = "") -> None:
        """Break between the parts of a line, never within one: `4` without its `MISSING` says nothing."""
        lines: list[str] = []
        for part in line.split(" · "):
            longer = f"{lines[-1]} · {part}" if lines else part
            lines[max(len(lines) - 1, 0) :] = [longer] if len(longer) <= self._console.width else [*lines[-1:], part]
        self._console.print(Text("\n".join(lines), style=style))


def _files(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return f"report in {folder}: {', '.join(names) or 'no files'}"
