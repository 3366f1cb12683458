"""What does a step of GitHub Actions show of a run? A line for each problem, and the report as the step's summary."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.reporters import markdown
from gradcheck_cli.reporters.grouping import Group, groups
from gradcheck_cli.reporters.plain_text import excerpt, printable
from gradcheck_cli.reporters.protocol import Silent
from gradcheck_cli.reporters.summary import exit_meaning, floor, reproducer

SUMMARY = "GITHUB_STEP_SUMMARY"
# Of one step, GitHub shows ten errors and ten warnings, and no summary at all where it is larger.
MOST_ERRORS = 10
LARGEST_SUMMARY = 1 << 20
CUT = "The summary was cut here: GitHub shows at most 1 MiB of a step. report.json holds all of it."
_LONGEST_WHY = 500
_FLOOR_NOT_MET = 5


class GithubReporter(Silent):
    """Prints workflow commands, and adds to the file that the variable GITHUB_STEP_SUMMARY names.

    What the table quotes of a candidate may look like a command, and the runner would obey it: until the annotations it
    is told, with a word that no candidate can guess, to take nothing for one.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._resume = ""

    def opened(self, run: Run, cases: Sequence[str]) -> None:  # noqa: ARG002  whatever is run
        """Nothing that is printed from here on is a command."""
        self.pause()

    def pause(self) -> None:
        """The same for a run that is only rendered."""
        self._resume = secrets.token_hex(16)
        self._line(f"::stop-commands::{self._resume}")

    def closed(self, report: Report) -> None:
        """Annotations onto standard output, each a line of its own; then the summary."""
        self.stop()
        for line in workflow_commands(report):
            self._line(line)
        if path := os.environ.get(SUMMARY):
            _append(Path(path), markdown.text(report))

    def stop(self) -> None:
        """Commands are commands again, for whatever the step does next."""
        if self._resume:
            self._line(f"::{self._resume}::")
        self._resume = ""

    def _line(self, line: str) -> None:
        # Past rich, which would wrap it.
        self._console.file.write(f"{line}\n")


def workflow_commands(report: Report) -> list[str]:
    """An error for each problem, as the table groups them; of more than GitHub shows, how many."""
    problems = [(group.title, _said(group)) for group in groups(report.verdicts) if _red(group)]
    problems += [(f"known failure {one.kind}", f"{one.place}: {one.why}") for one in report.complaints]
    if report.exit_code == _FLOOR_NOT_MET:
        problems.append(("floor not met", floor(report)))
    if report.exit_code and not problems:
        problems.append(("no success", exit_meaning(report.exit_code)))
    lines = [_command("error", title, message) for title, message in problems[:MOST_ERRORS]]
    more = len(problems) - MOST_ERRORS
    if more > 0:
        # A warning, of which there are none yet: an eleventh error would not be shown.
        told = f"{more} more problem{'' if more == 1 else 's'} of this run: the step's log and report.json have all"
        lines.append(_command("warning", "more problems", told))
    return lines


def _red(group: Group) -> bool:
    return not group.finding.outcome.green and not group.known


def _said(group: Group) -> str:
    return f"{excerpt(group.finding.why, _LONGEST_WHY)}\nrun: {reproducer(group.example)}"


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(f'gradcheck: {title}')}::{_data(message)}"


def _data(text: str) -> str:
    """A message as the runner decodes it: what would end its line is encoded."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The same, without what would end the property."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _append(path: Path, text: str) -> None:
    try:
        held = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(fitting(text, LARGEST_SUMMARY - held))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}; expected the file that {SUMMARY} names, which a step can "
            f"add to: unset the variable, or leave out --format github"
        ) from error


def fitting(text: str, room: int) -> str:
    """As many whole lines as the room in bytes holds, and where that is not all, a word on it; "" where none fits."""
    if len(text.encode()) <= room:
        return text
    end = f"\n{CUT}\n\n"
    left, kept = room - len(f"{end}</details>\n".encode()), []
    for line in text.splitlines(keepends=True):
        left -= len(line.encode())
        if left < 0:
            break
        kept.append(line)
    # The list of cases is folded: what is cut within it must be closed all the same.
    opened = any(line.startswith("<details>") for line in kept) and not any(line == "</details>\n" for line in kept)
    return "".join([*kept, end, "</details>\n" * opened]) if kept else ""
