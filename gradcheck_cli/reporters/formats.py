"""Which reporters does a run have, and which view answers to a format's name?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.report import Report, Settings
from gradcheck_cli.reporters import csv_pandas, junit, markdown, picture, report_json
from gradcheck_cli.reporters.console import ConsoleReporter, require_printed
from gradcheck_cli.reporters.everyone import Everyone
from gradcheck_cli.reporters.files import FileReporter, write_whole
from gradcheck_cli.reporters.github import GithubReporter
from gradcheck_cli.reporters.jsonl import REPORT, Journal, Observations
from gradcheck_cli.reporters.progress import BarReporter, PlainReporter
from gradcheck_cli.reporters.protocol import Reporter

_TABLE = "table"
_GITHUB = "github"
_VIEWS: dict[str, tuple[str, Callable[[Report], str | Iterable[str]]]] = {
    "json": (REPORT, report_json.parts),
    "csv": ("report.csv", csv_pandas.parts),
    "junit": ("junit.xml", junit.text),
    "markdown": ("report.md", markdown.text),
    "svg": ("table.svg", picture.text),
}
_ALWAYS = ("json", "csv")

# What is printed and leaves the run's folder as it is; then all.
PRINTED = (_TABLE, _GITHUB)
FORMATS = (_TABLE, *_VIEWS, _GITHUB)


class Files(NamedTuple):
    """What a run writes as it goes, open and this run's alone."""

    journal: Journal
    observations: Observations

    def stop(self) -> None:
        """Close them; twice is harmless."""
        self.journal.stop()
        self.observations.stop()


def new_files(folder: Path, settings: Settings | None = None) -> Files:
    """Those of a run that begins; UsageError where there is one already."""
    _require_new([folder / REPORT])
    return Files(Journal(folder, settings=settings), Observations(folder))


def of_run(
    formats: Sequence[str], folder: Path, console: Console, *, quiet: bool, files: Files | None = None
) -> Reporter:
    """Everyone who is told of a run: journal, observations, JSON, CSV and table always, the rest where asked for."""
    wanted = dict.fromkeys([*_ALWAYS, *known_formats(formats)])
    views = [FileReporter(folder / _VIEWS[name][0], _VIEWS[name][1]) for name in wanted if name not in PRINTED]
    loud = [] if quiet else [progress(console)]
    # The table after the files: it lists those that are there.
    printing = [*loud, ConsoleReporter(console, folder), *([GithubReporter(console)] if _GITHUB in wanted else [])]
    return Everyone([*(files or new_files(folder)), *views], printing)


def progress(console: Console) -> Reporter:
    """How far a run is, in the form that suits what it is printed on."""
    return BarReporter(console) if console.is_terminal else PlainReporter(console)


def render(
    report: Report,
    formats: Sequence[str],
    folder: Path,
    console: Console,
    *,
    output: Path | None = None,
    judged_from: Path | None = None,
) -> None:
    """A finished run again: files into `output` or its own folder, then the table onto the console."""
    wanted = dict.fromkeys(known_formats(formats))
    files = {name: (output or folder) / _VIEWS[name][0] for name in wanted if name not in PRINTED}
    _require_new(files.values())
    github = GithubReporter(console)
    if _GITHUB in wanted:
        github.pause()
    for name, file in files.items():
        write_whole(file, _VIEWS[name][1](report))
        console.print(Text(f"wrote {file}"), soft_wrap=True)
    if _TABLE in wanted:
        ConsoleReporter(console, folder, judged_from=judged_from).closed(report)
    if _GITHUB in wanted:
        github.closed(report)
    require_printed(console)


def _require_new(files: Iterable[Path]) -> None:
    """UsageError for a file that is there: what a run recorded is not written over."""
    for file in files:
        if file.exists():
            raise UsageError(f"{file} is there already, and stays as it is: name another folder with --output")


def known_formats(formats: Sequence[str]) -> Sequence[str]:
    """The same; UsageError where one of them is no format."""
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"unknown format {name!r}; the formats are: {', '.join(FORMATS)}")
    return formats
