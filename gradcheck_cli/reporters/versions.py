"""How are several versions told side by side? A row for each case that differs, and a line for all that do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.versions import Result, Row, Versions
from gradcheck_cli.reporters import summary
from gradcheck_cli.reporters.marks import code, escaped, row
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.table import style

JSON, MARKDOWN = "versions.json", "versions.md"
_MOST_ROWS = 60
# Characters: an outcome, and what stands between two columns.
_OUTCOME, _GAP = len("INACCURATE"), 3
_TE = "transformer_engine"


def heading(version: str, which: str, console: Console) -> None:
    """What stands before the table of one version."""
    console.print(Text(f"\nTransformer Engine {version} ({which})", style="bold"))


def json(found: Versions) -> str:
    """The record itself, indented."""
    return msgspec.json.format(to_json(found), indent=2) + "\n"


def markdown(found: Versions) -> str:
    """The table with whole ids, and the same lines as on a terminal."""
    names = [side.version for side in found.sides]
    lines = [f"# {escaped(_title(found))}", "", escaped(_where(found)), ""]
    if found.rows:
        lines += [row(["case", *map(escaped, names)]), row(["---"] * (len(names) + 1))]
        for one in found.rows:
            cells = _cells(one, names)
            lines.append(row([code(one.case), *(escaped(" ".join(cell)) for cell in cells)]))
        lines.append("")
    lines += [f"- {escaped(line)}" for line in (_same(found), *_sides(found))]
    return "\n".join(lines) + "\n"


def show(found: Versions, folder: Path, console: Console) -> None:
    """Print the table: of an id what all of its rows share stands above them."""
    shared, own = _apart([one.case for one in found.rows])
    console.print()
    console.print(Text(_title(found), style="bold"))
    console.print(Text(_where(found)), soft_wrap=True)
    if found.rows:
        console.print()
        console.print(_table(found, own, console.width))
    if len(found.rows) > _MOST_ROWS:
        console.print(Text(f"... and {len(found.rows) - _MOST_ROWS} more rows in {folder / MARKDOWN}"))
    if len(found.rows) > 1 and shared:
        console.print(Text(f"in every row: {' '.join(shared)}"), soft_wrap=True)
    console.print()
    for line in (_same(found), *_sides(found)):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"each run in {folder}/VERSION; this table with whole ids: {folder / MARKDOWN}"), soft_wrap=True)


def _table(found: Versions, own: Sequence[Sequence[str]], width: int) -> Table:
    """The names of axes are broken only where the outcomes would be: what failed folds beside them."""
    names = [side.version for side in found.sides]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    longest = max((len(part) for parts in own for part in parts), default=0)
    case = min(longest, max(width - len(names) * (_OUTCOME + _GAP), width // 4))
    each = max((width - case) // len(names) - _GAP, 1)
    table.add_column("case", overflow="fold", min_width=case)
    for name in names:
        table.add_column(name, overflow="fold", max_width=max(each, len(name)))
    for one, parts in list(zip(found.rows, own, strict=True))[:_MOST_ROWS]:
        cells = [
            Text("\n".join(cell), style=_style(one, name)) for cell, name in zip(_cells(one, names), names, strict=True)
        ]
        table.add_row(" ".join(parts), *cells)
    return table


def _apart(cases: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """What stands in all ids, and what is left of each; one id alone stays whole."""
    parts = [case.split(":") for case in cases]
    shared = [part for part in parts[0] if all(part in one for one in parts)] if len(parts) > 1 else []
    return shared, [[part for part in one if part not in shared] or ["all else default"] for one in parts]


def _cells(one: Row, names: Sequence[str]) -> list[list[str]]:
    """An outcome for each version; its failures below it where the outcome alone does not tell two versions apart."""
    told = {(found.outcome, *found.faults) for found in one.results.values()}
    alike = len(told) > len({found.outcome for found in one.results.values()})
    return [_cell(one.results.get(name), faults=alike) for name in names]


def _cell(result: Result | None, *, faults: bool) -> list[str]:
    if result is None:
        return ["-"]
    return [result.outcome.value, *(map(one_line, result.faults) if faults else ())]


def _style(one: Row, name: str) -> str:
    return style(one.results[name].outcome) if name in one.results else "dim"


def _title(found: Versions) -> str:
    return f"{summary.title(found.run)}, under {len(found.sides)} versions of Transformer Engine"


def _where(found: Versions) -> str:
    """The machine, and what is the same in all runs; the versions stand in the table."""
    first = next((side.environment for side in found.sides if side.environment.versions), Environment())
    differ = {_TE, *_differing(found)}
    same = {name: version for name, version in first.versions.items() if name not in differ}
    return summary.environment_line(msgspec.structs.replace(first, versions=same))


def _differing(found: Versions) -> list[str]:
    return differing([side.environment for side in found.sides])


def differing(environments: Sequence[Environment]) -> list[str]:
    """What else is not the same in all runs: cuBLASLt, where an unpacked folder brings its own."""
    known = [one.versions for one in environments if one.versions]
    names = dict.fromkeys(name for one in known for name in one if name != _TE)
    return [name for name in names if len({one.get(name) for one in known}) > 1]


def _same(found: Versions) -> str:
    """`the same under every version: 8 of 12 cases, 8 PASSED`."""
    alike = sum(found.same.values())
    told = [f"the same under every version: {alike} of {alike + len(found.rows)} cases"]
    return ", ".join([*told, *([summary.counts(found.same)] if found.same else [])])


def _sides(found: Versions) -> Iterator[str]:
    """What each run came to."""
    for side in found.sides:
        own = side.environment.versions
        said = [f"{name} {own[name]}" for name in _differing(found) if name in own]
        said += [summary.headline(side.tally)] if side.tally else []
        said += [f"exit code {summary.exit_meaning(side.exit_code)}"] if side.exit_code else []
        said += [one_line(side.failure)] if side.failure else []
        yield f"{side.version}: {' · '.join(said)}"
