"""How does the matrix look on a terminal? One table a provider, readable at 100 columns and without colour."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.observation import INFINITE
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.folding import Cell, Largest, Row, has_path, roles_shown

LEGEND = (
    "n/m: n of the row's m cases · err/bound: the largest error as a share of its bound, in brackets "
    "the largest after output rounding; above 1 is INACCURATE"
)
_GREY = (Outcome.EXCLUDED, Outcome.REFUSED)


def table(provider: str, rows: list[Row]) -> Table:
    """The rows of one provider; path and bgrad have a column only where a case has them."""
    paths, roles = has_path(rows), roles_shown(rows)
    drawn = Table(
        title=Text(f"provider {provider}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        # The box has one blank between columns; a second is for tables that still fit 100 columns with it.
        padding=(0, 0 if paths and "bgrad" in roles else 1, 0, 0),
    )
    names = ["api", *(["path"] if paths else []), "single", "fuse\nwgrad", "dtype"]
    for name in names:
        drawn.add_column(name, no_wrap=True)
    drawn.add_column("cases", justify="right")
    for role in roles:
        drawn.add_column(role)
    drawn.add_column("err/\nbound")
    for row in rows:
        cells = [_cell(row.roles.get(role)) for role in roles]
        drawn.add_row(*_names(row, paths=paths), Text(str(row.cases)), *cells, Text(ratio(row.largest)))
    return drawn


def style(outcome: Outcome) -> str:
    """Colour goes with the word, never in its place."""
    if outcome is Outcome.PASSED:
        return "green"
    return "yellow" if outcome in _GREY else "bold red"


def ratio(largest: Largest | None) -> str:
    """`0.97 (0.24)`: both figures of a row; empty where nothing was compared."""
    return f"{_figure(largest.ratio)} ({_figure(largest.after_rounding)})" if largest else ""


def _figure(value: float) -> str:
    if value >= INFINITE:
        return "inf"
    return f"{value:.2f}" if value < 100 else f"{value:.0e}"


def _names(row: Row, *, paths: bool) -> list[Text]:
    path = [row.path or "auto"] if paths else []
    axes = [row.axes[axis] for axis in ("single_grouped_weight", "fuse_wgrad_accumulation", "dtype")]
    return [Text(name) for name in (row.axes["api"], *path, *axes)]


def _cell(cell: Cell | None) -> Text:
    """A dash where no case of the row has such a gradient."""
    return Text(str(cell), style=style(cell.outcome)) if cell else Text("-", style="dim")
