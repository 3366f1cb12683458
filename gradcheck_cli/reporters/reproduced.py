"""What became of each public report in a run? A row each: its faulty variant, the sound one, the layer itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.public import PARTS, CameOut, Part, Reproduced

HEAD = ("report", "its fault, found as", "sound", "itself", "link")
NONE = "-"
# In characters: between columns, of what was found at least, of the two last columns at most.
_GAP, _FOUND, _ITSELF, _LINK = 2, 20, 14, 44
_HOST = "https://github.com/"


def table(found: Sequence[Reproduced], width: int) -> Table:
    """The rows for a console of this width, links whole; what came out otherwise in red."""
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    rows = [[one.name, *("\n".join(cell) for cell in parts(one)), one.link.removeprefix(_HOST)] for one in found]
    longest = [
        max(len(line) for row in (HEAD, *rows) for line in row[column].split("\n")) for column in range(len(HEAD))
    ]
    longest[-2:] = min(longest[-2], _ITSELF), min(longest[-1], _LINK)
    room = width - sum(longest) + longest[1] - _GAP * len(HEAD)
    longest[1] = max(_FOUND, min(longest[1], room))
    for name, wide in zip(HEAD, longest, strict=True):
        drawn.add_column(name, width=wide, overflow="fold")
    for one, (*cells, link) in zip(found, rows, strict=True):
        style = "" if one.as_recorded else "bold red"
        # All stand on one host; a terminal follows the whole address.
        drawn.add_row(*(Text(cell, style=style) for cell in cells), Text(link, style=f"link {one.link}"))
    return drawn


def parts(one: Reproduced) -> list[list[str]]:
    """What its faulty variants, the sound ones and the layer itself came out as."""
    return [_said(part, [it for it in one.cases if it.part == part]) for part in PARTS]


def summary(found: Sequence[Reproduced]) -> str:
    """`92 public reports · 92 as recorded`; the names of those that are not."""
    odd = [one.name for one in found if not one.as_recorded]
    told = [f"{len(found)} public report{'' if len(found) == 1 else 's'}", f"{len(found) - len(odd)} as recorded"]
    return " · ".join([*told, *([f"otherwise: {', '.join(odd)}"] if odd else [])])


def _said(part: Part, cases: Sequence[CameOut]) -> list[str]:
    told = [f"OTHERWISE: {one.found}, not {one.recorded}: {one.case}" for one in cases if one.state == "otherwise"]
    held = [one for one in cases if one.state == "as recorded"]
    if part == "faulty":  # of faults put into what a right chain left, which was then judged to be wrong
        told += dict.fromkeys(one.recorded if one.found == "PASSED" else one.found for one in held)
    else:
        told += [f"{count} {found}" for found, count in Counter(one.found for one in held).items()]
    rest = Counter(one.state for one in cases if one.state not in ("as recorded", "otherwise"))
    return [*told, *(f"{count} {state}" for state, count in rest.items())] or [NONE]
