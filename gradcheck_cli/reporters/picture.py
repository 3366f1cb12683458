"""How does the table look where there is no terminal? As an SVG picture, for a README or an issue."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters.console import ConsoleReporter
from gradcheck_cli.reporters.summary import title

_COLUMNS = 100


class _Paper(Console):
    """A picture cannot be scrolled: what a terminal leaves whole, so that it can be copied, is folded here."""

    def print(self, *objects: Any, **more: Any) -> None:
        """Print, and fold."""
        super().print(*objects, **{**more, "soft_wrap": False})


def text(report: Report) -> str:
    """The console's table, findings and summary at 100 columns; the same report always gives the same picture."""
    console = _Paper(record=True, width=_COLUMNS, file=io.StringIO(), highlight=False, force_terminal=True)
    reporter = ConsoleReporter(console, folder=None)
    reporter.opened(report.run, [])  # the picture is of the run itself, whenever it is drawn
    reporter.closed(report)
    return console.export_svg(title=title(report.run), unique_id="gradcheck")
