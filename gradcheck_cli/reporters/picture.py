"""How does the table look where there is no terminal? As an SVG picture, for a README or an issue."""

from __future__ import annotations

import io
from typing import Any

from rich.padding import Padding
from rich.text import Text

from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters.clean_console import CleanConsole
from gradcheck_cli.reporters.console import ConsoleReporter
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.summary import title

_COLUMNS = 100


class _Paper(CleanConsole):
    """A picture cannot be scrolled: what a terminal leaves whole, so that it can be copied, is folded here."""

    def print(self, *objects: Any, **more: Any) -> None:
        """Print, and fold; what is indented stays so."""
        super().print(*map(_indented, objects), **{**more, "soft_wrap": False})


def _indented(one: Any) -> Any:
    """A text of one line as rich folds it under its own beginning."""
    blanks = len(one.plain) - len(one.plain.lstrip(" ")) if isinstance(one, Text) and "\n" not in one.plain else 0
    return Padding(one[blanks:], (0, 0, 0, blanks)) if blanks else one


def text(report: Report) -> str:
    """The console's table, findings and summary at 100 columns; the same report always gives the same picture."""
    console = _Paper(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    reporter = ConsoleReporter(console, folder=None)
    reporter.opened(report.run, [])  # the picture is of the run itself, whenever it is drawn
    reporter.closed(report)
    return console.export_svg(title=one_line(title(report.run)), unique_id="gradcheck")
