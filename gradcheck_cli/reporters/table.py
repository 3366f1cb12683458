"""How does the matrix look on a terminal? One table a provider, readable without colour and at any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.observation import INFINITE
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.folding import Cell, Largest, Row, brackets, has_known, has_path, roles_shown

_PARTS = "n/m: n of the row's m cases"
RATIO_IN_WORDS = (
    "err/bound: the largest error as a share of its bound, in brackets the largest after output rounding; "
    "above 1 is INACCURATE"
)
_NO_RATIO = "err/bound: no room for it here; a wider terminal shows it, report.csv has it"
PATH_IN_WORDS = "path: as it ran, in brackets one that was asked for and not seen to run"
_GREY = (Outcome.EXCLUDED, Outcome.REFUSED)
_ENDLESS = 1_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What gives way where there is little room; an outcome is written out in every one."""

    blanks: int = 0  # between columns, beside the one of the box
    ratio: bool = True
    counts_below: bool = False  # `MISSING` over `2/3`
    stacked: bool = False  # axes below each other, roles below each other
    at_least: int = 0  # columns of the terminal


# The first that fits is taken, or the last: that one needs less than 50 columns, and folds words where there are fewer.
LAYOUTS = (
    Layout(blanks=1),
    Layout(),
    Layout(counts_below=True, at_least=90),
    Layout(ratio=False),
    Layout(ratio=False, counts_below=True),
    Layout(ratio=False, stacked=True, blanks=1),
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A table, its rows, and what of them it shows."""

    table: Table
    rows: Sequence[Row]
    layout: Layout


def draw(console: Console, provider: str, rows: Sequence[Row]) -> Drawn:
    """The rows of one provider, as roomy as the console lets it be."""
    endless = console.options.update_width(_ENDLESS)
    for layout in LAYOUTS:
        table = _stacked(provider, rows, layout) if layout.stacked else _table(provider, rows, layout)
        if console.width >= layout.at_least and Measurement.get(console, endless, table).maximum <= console.width:
            break
    return Drawn(table=table, rows=rows, layout=layout)


def legend(drawn: Sequence[Drawn]) -> str:
    """What the figures and brackets of the tables mean, and what had no room; nothing of what is in none of them."""
    cells = [cell for one in drawn for row in one.rows for cell in row.roles.values()]
    told = [_PARTS] if any("/" in str(cell) for cell in cells) else []
    if any(brackets(one.rows) for one in drawn):
        told.append(PATH_IN_WORDS)
    # One table may have the room that another lacks.
    compared = {one.layout.ratio for one in drawn for row in one.rows if row.largest}
    told += [RATIO_IN_WORDS] * (True in compared) + [_NO_RATIO] * (False in compared)
    return " · ".join(told)


def _table(provider: str, rows: Sequence[Row], layout: Layout) -> Table:
    """A column for each axis and role; path and bgrad have one only where a case has them."""
    paths, roles = has_path(rows), roles_shown(rows)
    drawn = _empty(provider, layout)
    for name in ["api", *(["path"] if paths else []), "single", "fuse\nwgrad", "dtype"]:
        drawn.add_column(name)
    counted = ["cases", "known"] if has_known(rows) else ["cases"]
    for name in counted:
        drawn.add_column(name, justify="right")
    for role in roles:
        drawn.add_column(role)
    if layout.ratio:
        drawn.add_column("err/\nbound")
    for row in rows:
        cells = [_cell(row.roles.get(role), counts_below=layout.counts_below) for role in roles]
        last = [ratio(row.largest)] if layout.ratio else []
        drawn.add_row(*_names(row, paths=paths), *_counts(row)[: len(counted)], *cells, *last)
    return drawn


def _stacked(provider: str, rows: Sequence[Row], layout: Layout) -> Table:
    """Three columns: the axes of a row in lines, its roles in lines, and an outcome beside each."""
    paths, roles = has_path(rows), roles_shown(rows)
    drawn = _empty(provider, layout)
    drawn.show_lines = True
    for name in ("layer", "role", "outcome"):
        drawn.add_column(name, overflow="fold")
    for row in rows:
        first = f"{row.axes['api']} {row.path}" if paths else row.axes["api"]
        second = f"{row.axes['dtype']} single={row.axes['single_grouped_weight']}"
        third = f"fuse_wgrad={row.axes['fuse_wgrad_accumulation']}"
        known = f", known: {row.known}" if row.known else ""
        layer = "\n".join([first, second, third, f"cases: {row.cases}{known}"])
        drawn.add_row(Text(layer), "\n".join(roles), Text("\n").join(_cell(row.roles.get(role)) for role in roles))
    return drawn


def _empty(provider: str, layout: Layout) -> Table:
    title = Text(f"provider {provider}", style="bold")
    padding = (0, layout.blanks, 0, 0)
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=padding)


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
    path = [row.path.replace(" ", "\n")] if paths else []
    axes = [row.axes[axis] for axis in ("single_grouped_weight", "fuse_wgrad_accumulation", "dtype")]
    return [Text(name) for name in (row.axes["api"], *path, *axes)]


def _counts(row: Row) -> list[str]:
    return [str(row.cases), str(row.known or "")]


def _cell(cell: Cell | None, *, counts_below: bool = False) -> Text:
    """A dash where no case of the row has such a gradient."""
    if cell is None:
        return Text("-", style="dim")
    return Text(str(cell).replace(" ", "\n") if counts_below else str(cell), style=style(cell.outcome))
