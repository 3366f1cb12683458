"""Which reporters does a run have, and which view answers to a format's name?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters import csv_pandas, junit, markdown, picture, report_json
from gradcheck_cli.reporters.console import ConsoleReporter, require_printed
from gradcheck_cli.reporters.everyone import Everyone
from gradcheck_cli.reporters.files import FileReporter, write_whole
from gradcheck_cli.reporters.jsonl import Journal, Observations
from gradcheck_cli.reporters.progress import BarReporter, PlainReporter
from gradcheck_cli.reporters.protocol import Reporter
from gradcheck_cli.reporters.read import REPORT

_TABLE = "table"
_VIEWS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "json": (REPORT, report_json.text),
    "csv": ("report.csv", csv_pandas.text),
    "junit": ("junit.xml", junit.text),
    "markdown": ("report.md", markdown.text),
    "svg": ("table.svg", picture.text),
}
_ALWAYS = ("json", "csv")

FORMATS = (_TABLE, *_VIEWS)


def of_run(formats: Sequence[str], folder: Path, console: Console, *, quiet: bool) -> Reporter:
    """Everyone who is told of a run: journal, observations, JSON, CSV and table always, the rest where asked for."""
    wanted = dict.fromkeys([*_ALWAYS, *_known(formats)])
    views = [FileReporter(folder / _VIEWS[name][0], _VIEWS[name][1]) for name in wanted if name != _TABLE]
    loud = [] if quiet else [progress(console)]
    # The table last: it lists the files that are there.
    return Everyone([Journal(folder), Observations(folder), *views], [*loud, ConsoleReporter(console, folder)])


def progress(console: Console) -> Reporter:
    """How far a run is, in the form that suits what it is printed on."""
    return BarReporter(console) if console.is_terminal else PlainReporter(console)


def render(report: Report, formats: Sequence[str], folder: Path, console: Console) -> None:
    """A finished run again: files into its folder, then the table onto the console."""
    wanted = dict.fromkeys(_known(formats))
    for name in wanted:
        if name != _TABLE:
            file, view = _VIEWS[name]
            write_whole(folder / file, view(report))
            console.print(Text(f"wrote {folder / file}"), soft_wrap=True)
    if _TABLE in wanted:
        ConsoleReporter(console, folder).closed(report)
        require_printed(console)


def _known(formats: Sequence[str]) -> Sequence[str]:
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"unknown format {name!r}; the formats are: {', '.join(FORMATS)}")
    return formats
