"""How is it told what the oracle sees? A table of faults against channels, and the smallest errors seen."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.records.observation import DATA, FILLS, Fill
from gradcheck_cli.records.sensitivity import Ended, Seen, Sensitivity, Smallest

_MOST_SURVIVORS = 10
_WIDE = 100  # columns, from which on there is room to say what a fault is


def show(found: Sensitivity, console: Console) -> None:
    """Print it all; the last line says whether a green on this machine means something."""
    console.print(Text("Faults put into a right layer's results: seen / put in, where they change anything"))
    console.print(_faults(found.seen, wide=console.width >= _WIDE))
    told = "- no place for it in this data; an epsilon that is not seen is a measure, and no failure"
    console.print(Text(f"{told}\n", style="dim"))
    console.print(Text("Smallest relative error that is seen, over all gradients of all cases, in unit roundoffs"))
    console.print(_ladder(found.smallest))
    if found.endings:
        console.print(Text("A layer that does not come back, and a right one that is asked for next"))
        console.print(_endings(found.endings))
        for name in ENDINGS.keys() - {one.ending for one in found.endings}:
            console.print(Text(f"not here: {name}, which {ENDINGS[name].summary}\n", style="dim"), soft_wrap=True)
    for survivor in found.survived[:_MOST_SURVIVORS]:
        console.print(Text(f"NOT SEEN: {survivor}", style="bold red"), soft_wrap=True)
    for problem in _problems(found):
        console.print(Text(problem, style="bold red"), soft_wrap=True)
    ended = sum(one.seen for one in found.endings)
    faults = f"{found.killed} of {found.of} faults seen in {found.cases} of {found.asked} cases"
    if steps := found.of - found.killed - len(found.survived):
        console.print(Text(f"{steps} faults that were not seen are steps of epsilon_*, a measure and no failure"))
    told = f"{faults} · {ended} of {len(found.endings)} endings told · {found.seconds:.1f} s"
    console.print(Text(told, style="bold green" if found.green else "bold red"))


def _problems(found: Sensitivity) -> list[str]:
    problems = []
    if found.passed < found.cases:
        lost = found.cases - found.passed
        problems.append(f"{lost} of {found.cases} cases did not pass: `gradcheck run` with this matrix says why")
    if found.cases < found.asked:
        early = f"{found.asked - found.cases} more cases ended before a fault could be put into them"
        problems.append(f"{early}: the layer refused or failed by itself, `gradcheck run` with this matrix says how")
    if found.never_put_in:
        names = ", ".join(found.never_put_in)
        problems.append(
            f"no case of this matrix has a place for {names}: nothing is known of them; try --matrix selftest"
        )
    return problems


def _faults(seen: list[Seen], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    for fill in FILLS:
        table.add_column(DATA[fill].removesuffix(" data"), justify="right", no_wrap=True)
    table.add_column("stands for", style="dim", no_wrap=True)
    if wide:
        table.add_column("what is wrong")
    for one in seen:
        summary = [one.summary] if wide else []
        table.add_row(one.fault, *(_count(one, fill) for fill in FILLS), one.cites, *summary)
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
        table.add_column(DATA[fill].removesuffix(" data"), justify="right")
    for chain, dtype in sorted({(one.chain, one.dtype) for one in smallest}):
        cells = {one.fill: _range(one) for one in smallest if (one.chain, one.dtype) == (chain, dtype)}
        head = f"{dtype}, chains" if chain else dtype, f"{FORMATS[dtype].unit_roundoff:.1e}"
        table.add_row(*head, *(cells.get(fill, Text("-", style="dim")) for fill in FILLS))
    return table


def _range(one: Smallest) -> Text:
    told = f"{one.best}" if one.best == one.worst else f"{one.best} to {one.worst}"
    return Text(f"{told}, of {one.blind} of {one.gradients} none" if one.blind else told)
