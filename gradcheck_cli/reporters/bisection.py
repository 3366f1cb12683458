"""How is it told between which versions a case changed? What each version made of it, then what changed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.failure import faults
from gradcheck_cli.records.versions import KINDS, Bisection, Change, Kind, Tried
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.standard_output import complain
from gradcheck_cli.reporters.table import style
from gradcheck_cli.reporters.versions import differing

FORMATS = ("text", "json")
_STYLES: dict[Kind, str] = {"broke": "bold red", "mended": "bold green"}


def require(form: str) -> None:
    """UsageError for a format that there is not."""
    if form not in FORMATS:
        raise UsageError(f"unknown format {form!r}: expected {' or '.join(FORMATS)}")


def step(said: str) -> None:
    """What is being run now, on stderr: standard output holds the answer alone."""
    complain(said)


def show(found: Bisection, form: str, console: Console) -> None:
    """Print it in one of FORMATS."""
    if form == "json":
        console.print(Text(msgspec.json.format(to_json(found), indent=2)), soft_wrap=True)
        return
    console.print(Text(found.case, style="bold"), soft_wrap=True)
    by_version = {one.version: one for one in found.tried}
    width = max(map(len, found.versions))
    for version in found.versions:
        one = by_version.get(version)
        said = Text(result(one), style=style(one.verdict.outcome)) if one else Text("not run", style="dim")
        console.print(Text.assemble(f"  {version:{width}}  ", said), soft_wrap=True)
    for change in found.changes:
        console.print(Text(_change(change, by_version), style=_STYLES.get(change.kind, "bold yellow")), soft_wrap=True)
    for line in _last(found):
        console.print(Text(line), soft_wrap=True)


def result(one: Tried) -> str:
    """`PASSED`; of what is red every failure, `wgrad MISSING (none)`; of a refusal its own words."""
    verdict = one.verdict
    told = list(faults(verdict).values())
    if not told:
        told = [f"{verdict.outcome.value}: {verdict.worst.why}" if verdict.worst else verdict.outcome.value]
    return one_line("; ".join(told))


def _change(change: Change, by_version: dict[str, Tried]) -> str:
    """`mended between 2.18.0 and 2.19.0: was wrong, and is right (MISSING -> PASSED)`."""
    was, now = (by_version[version].verdict.outcome.value for version in (change.old, change.new))
    between = f"; refused by {', '.join(change.refused)}, between them" if change.refused else ""
    return f"{change.kind} between {change.old} and {change.new}: {KINDS[change.kind]} ({was} -> {now}){between}"


def _last(found: Bisection) -> Iterator[str]:
    if not found.changes:
        yield "the same under every version"
    for name in differing([one.environment for one in found.tried]):
        own = {one.version: one.environment.versions.get(name, "none") for one in found.tried}
        each = ", ".join(f"{own[version]} under {version}" for version in found.versions if version in own)
        yield f"{name} is not the same either: {each}"
    if found.not_run:
        names = ", ".join(found.not_run)
        yield f"not run: {names}; a fault that came and went there does not show: --all runs every version"
    yield f"ran {len(found.tried)} of {len(found.versions)} versions, {found.seconds:.1f} s"
