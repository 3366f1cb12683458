"""How is it told what the oracle sees? A table of faults against channels, and the smallest errors seen."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.battery import ENDINGS
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import FILLS, Fill
from gradcheck_cli.records.sensitivity import Ended, Seen, Sensitivity, Smallest

_NAMES = {"exact": "exact", "range": "range", "normal": "bounded"}
_MOST_SURVIVORS = 10


def show(found: Sensitivity, console: Console) -> None:
    """Print it all; the last line says whether every required fault was seen."""
    console.print(Text("Faults put into what a right layer has done, and seen, of those that change anything\n"))
    console.print(_faults(found.seen))
    console.print(Text("\nSmallest relative error of one gradient that is seen, in unit roundoffs of its dtype\n"))
    console.print(_ladder(found.smallest))
    console.print(Text("\nfirst the case that sees most, then the one that sees least"))
    if found.endings:
        console.print(Text("\nA layer that does not come back, and a right one that is asked for next\n"))
        console.print(_endings(found.endings))
        for name in ENDINGS.keys() - {one.ending for one in found.endings}:
            console.print(Text(f"not here: {name}, which {ENDINGS[name].summary}", style="dim"), soft_wrap=True)
    for survivor in found.survived[:_MOST_SURVIVORS]:
        console.print(Text(f"NOT SEEN: {survivor}", style="bold red"), soft_wrap=True)
    if found.passed < found.cases:
        lost = found.cases - found.passed
        told = f"{lost} of {found.cases} cases did not pass: `gradcheck run` with this matrix says why"
        console.print(Text(told, style="bold red"))
    if found.ended_early:
        told = f"{found.ended_early} more cases ended before a fault could be put into them, by the layer's own failure"
        console.print(Text(told))
    ended = sum(one.seen for one in found.endings)
    faults = f"{found.killed} of {found.of} faults seen in {found.cases} cases"
    told = f"{faults} · {ended} of {len(found.endings)} endings told · {found.seconds:.1f} s"
    console.print(Text(f"\n{told}", style="bold green" if found.sees else "bold red"))


def _faults(seen: list[Seen]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    for fill in FILLS:
        table.add_column(_NAMES[fill], justify="right", no_wrap=True)
    table.add_column("what is wrong")
    table.add_column("stands for", style="dim")
    for one in seen:
        table.add_row(one.fault, *(_count(one, fill) for fill in FILLS), one.summary, one.cites)
    return table


def _count(one: Seen, fill: Fill) -> Text:
    of = one.of.get(fill, 0)
    if not of:
        return Text("-", style="dim")
    killed = one.killed.get(fill, 0)
    return Text(f"{killed}/{of}", style="green" if killed == of else "" if killed else "yellow")


def _endings(endings: list[Ended]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("ending", "expected", "found", "next"):
        table.add_column(name, no_wrap=True)
    table.add_column("what it does")
    for one in endings:
        colour = "green" if one.seen else "bold red"
        found, after = (Text(outcome.value, style=colour) for outcome in (one.outcome, one.after))
        table.add_row(one.ending, one.deserves.value, found, after, one.summary)
    return table


def _ladder(smallest: list[Smallest]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("dtype")
    table.add_column("roundoff", justify="right")
    for fill in FILLS:
        table.add_column(_NAMES[fill], justify="right")
    for dtype in dict.fromkeys(one.dtype for one in smallest):
        cells = {one.fill: _range(one) for one in smallest if one.dtype == dtype}
        roundoff = f"{FORMATS[dtype].unit_roundoff:.1e}"
        table.add_row(dtype, roundoff, *(cells.get(fill, Text("-", style="dim")) for fill in FILLS))
    return table


def _range(one: Smallest) -> Text:
    told = f"{one.best}" if one.best == one.worst else f"{one.best} to {one.worst}"
    return Text(f"{told}, none in {one.blind} of {one.cases} cases" if one.blind else told)
