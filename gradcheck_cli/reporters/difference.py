"""How is it told what changed? What differs between the machines, a count of each kind, then the cases that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.difference import ABSENT, KINDS, REGRESSIONS, Change, Difference, Kind, Side
from gradcheck_cli.reporters import summary
from gradcheck_cli.reporters.marks import code, escaped, row
from gradcheck_cli.reporters.plain_text import excerpt, one_line

_MOST_CASES = 8  # of each kind
_MOST_IN_MARKDOWN = 200
_LONGEST_WHY = 300
_GOOD = ("mended", "coverage gained")
_MEANING: dict[str, str] = {
    **{str(kind): told for kind, told in KINDS.items()},
    "only in OLD": "not compared",
    "only in NEW": "not compared",
}
# A row holds the cases that agree on these; whether wgrad is fused is told where it is the same in all of them.
_AXES = ("provider", "api", "path", "dtype", "single_grouped_weight")


class Alike(NamedTuple):
    """Changes of one kind, from one thing to another, in the cases of one layer and dtype."""

    kind: Kind
    layer: str
    what: str
    changes: list[Change]


def require(form: str) -> None:
    """UsageError for a format that there is not."""
    if form not in FORMATS:
        raise UsageError(f"unknown format {form!r}: expected {' or '.join(FORMATS)}")


def show(found: Difference, form: str, console: Console) -> None:
    """Print a difference in one of FORMATS."""
    if form == "table":
        _print(found, console)
    else:
        console.print(Text(_WRITTEN[form](found).rstrip("\n")), soft_wrap=True)


def markdown(found: Difference) -> str:
    """Two tables, and the list of cases, folded."""
    lines = [f"# {escaped(_title(found))}", "", f"**{escaped(_headline(found))}**", ""]
    lines += [row(["", "old", "new"]), row(["---"] * 3)]
    lines += [row([escaped(name), *map(escaped, pair)]) for name, pair in _header(found)]
    if found.changes:
        lines += ["", row(["kind", "layer", "change", "cases"]), row(["---"] * 4)]
    for one in _alike(found):
        lines.append(row([_marked(one.kind), escaped(one.layer), escaped(one.what), str(len(one.changes))]))
    listed = [f"- {escaped(kind)}: {code(case)}" for kind, case in _cases(found)]
    if listed:
        more = len(listed) - _MOST_IN_MARKDOWN
        cut = [f"- {more} more, all with --format json"] if more > 0 else []
        lines += ["", f"<details><summary>{len(listed)} cases</summary>", "", *listed[:_MOST_IN_MARKDOWN], *cut]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def json(found: Difference) -> str:
    """The record itself, indented."""
    return msgspec.json.format(to_json(found), indent=2) + "\n"


_WRITTEN: dict[str, Callable[[Difference], str]] = {"markdown": markdown, "json": json}
FORMATS = ("table", *_WRITTEN)


def _print(found: Difference, console: Console) -> None:
    console.print(Text(_title(found), style="bold"))
    console.print()
    console.print(_versions(found))
    if found.changes:
        console.print()
        console.print(_table(found))
    by_kind: dict[str, list[str]] = {}
    for kind, case in _cases(found):
        by_kind.setdefault(kind, []).append(case)
    for kind, cases in by_kind.items():
        console.print(Text(f"\n{kind}: {_MEANING[kind]}", style=_style(kind)))
        for case in cases[:_MOST_CASES]:
            console.print(Text(f"  {case}"), soft_wrap=True)  # in one line, so that it can be copied
        if len(cases) > _MOST_CASES:
            console.print(Text(f"  ... and {len(cases) - _MOST_CASES} more, all with --format json"))
    for change in _first_whys(found):
        said = f"{change.old} -> {change.new}: {excerpt(change.why, _LONGEST_WHY)}"
        console.print()
        console.print(Text(said, style="dim"))
    console.print()
    console.print(Text(_headline(found), style="bold red" if found.regressed else "bold green"))


def _title(found: Difference) -> str:
    return f"{summary.title(found.old.run)}, compared with {summary.title(found.new.run)}"


def _headline(found: Difference) -> str:
    counts = {kind: len({(one.case, one.new_case) for one in found.changes if one.kind == kind}) for kind in KINDS}
    said = [f"{count} {kind}" for kind, count in counts.items() if count] or ["nothing changed"]
    only = [f"{len(ids)} only in {side}" for side, ids in (("OLD", found.only_old), ("NEW", found.only_new)) if ids]
    excused = [f"NEW was not asked for all of OLD: {one_line(found.not_asked)}"] if found.not_asked else []
    return " · ".join([f"compared {found.compared}", *said, *only, *excused])


def _header(found: Difference) -> Iterator[tuple[str, tuple[str, str]]]:
    """What differs between the runs, and what each of them concluded."""
    if found.old.run.gradcheck != found.new.run.gradcheck:
        yield "gradcheck", (found.old.run.gradcheck, found.new.run.gradcheck)
    yield from found.environment.items()
    yield "executed", (_executed(found.old), _executed(found.new))
    for name in {**found.old.tally.outcomes, **found.new.tally.outcomes}:
        yield name, (str(found.old.tally.outcomes.get(name, 0)), str(found.new.tally.outcomes.get(name, 0)))


def _executed(side: Side) -> str:
    return f"{side.tally.executed} of {side.tally.asked}"


def _versions(found: Difference) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for name in ("old", "new"):
        table.add_column(name, overflow="fold")
    for name, (was, now) in _header(found):
        table.add_row(name, was or "-", now or "-")
    return table


def _table(found: Difference) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("kind")
    for name in ("layer", "change"):
        table.add_column(name, overflow="fold")
    table.add_column("cases", justify="right")
    for one in _alike(found):
        table.add_row(Text(one.kind, style=_style(one.kind)), one.layer, one.what, str(len(one.changes)))
    return table


def _alike(found: Difference) -> list[Alike]:
    rows: dict[tuple[Kind, str, str], list[Change]] = {}
    for change in found.changes:
        rows.setdefault((change.kind, _layer(change), _what(change)), []).append(change)
    return [Alike(kind, f"{layer}{_fused(changes)}", what, changes) for (kind, layer, what), changes in rows.items()]


def _layer(change: Change) -> str:
    """`te module native bf16 single=1`: what is not the default."""
    *named, single = (change.axes.get(axis, "") for axis in _AXES)
    return " ".join([*(str(part) for part in named if part not in ("", "auto")), *(["single=1"] if single else [])])


def _fused(changes: list[Change]) -> str:
    values = {change.axes.get("fuse_wgrad_accumulation", "") for change in changes}
    return "" if len(values) > 1 else f" fuse_wgrad={values.pop()}"


def _what(change: Change) -> str:
    """`MISSING -> PASSED`; of a regression within one outcome, the roles that changed."""
    if change.kind in ("margin", "slower"):
        return f"{change.role} after rounding" if change.role else "seconds"
    if change.old == change.new and change.roles:
        return ", ".join(f"{role} {was.value} -> {now.value}" for role, (was, now) in change.roles.items())
    return f"{change.old} -> {change.new}"


def _cases(found: Difference) -> Iterator[tuple[str, str]]:
    for change in found.changes:
        case = f"{change.case} -> {change.new_case}" if change.new_case else change.case
        figures = f" ({' '.join(part for part in (change.role, change.old, '->', change.new) if part)})"
        yield change.kind, f"{case}{figures}" if change.kind in ("margin", "slower") else case
    lost = {change.case for change in found.changes if change.new == ABSENT}
    yield from (("only in OLD", case) for case in found.only_old if case not in lost)
    yield from (("only in NEW", case) for case in found.only_new)


def _first_whys(found: Difference) -> list[Change]:
    """The first regression of each kind and pair of outcomes, for its own words."""
    first: dict[tuple[str, str, str], Change] = {}
    for change in found.changes:
        if change.kind in REGRESSIONS and change.why:
            first.setdefault((change.kind, change.old, change.new), change)
    return list(first.values())


def _marked(kind: Kind) -> str:
    return f"**{kind}**" if kind in REGRESSIONS else kind


def _style(kind: str) -> str:
    if kind in REGRESSIONS:
        return "bold red"
    return "green" if kind in _GOOD else "yellow"
