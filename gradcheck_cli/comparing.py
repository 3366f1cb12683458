"""What changed between two finished runs? Their cases in pairs, the difference told, and an exit code for a gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.judge.difference import difference
from gradcheck_cli.records.case import NAME
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.splits import END
from gradcheck_cli.reporters import difference as told
from gradcheck_cli.reporters.console import open_console, require_printed
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reporters.sharing import Sharing

Layer = tuple[str, str]
_NAME = NAME.removeprefix("^").removesuffix(END)
_LAYERS = re.compile(rf"({_NAME}):({_NAME})=({_NAME}):({_NAME})")


def diff(old: Path, new: Path, form: str, provider_map: Sequence[str]) -> int:
    """Print what changed from one run to another; 1 where something regressed, else 0."""
    told.require(form)
    sharing = Sharing()
    before, after = read(old, sharing), read(new, sharing)
    found = difference(before, after, layers(provider_map, before, after))
    if not found.compared:
        raise NothingSelected(
            f"nothing to compare: expected cases of {old} in {new}, found none of its {len(before.verdicts)} there; "
            f"runs of one matrix have the same ids, and --provider-map pairs those of two layers"
        )
    console = open_console()
    told.show(found, form, console)
    require_printed(console)
    return int(found.regressed)


def layers(texts: Sequence[str], old: Report, new: Report) -> dict[Layer, Layer]:
    """`te:op=torch:grouped_mm` as pairs of provider and API; UsageError where a run has no such cases."""
    mapped: dict[Layer, Layer] = {}
    for text in texts:
        found = _LAYERS.fullmatch(text)
        if not found:
            raise UsageError(
                f"--provider-map {shortened(text)}: expected OLD=NEW with a provider and an API each, "
                f"as in te:op=torch:grouped_mm"
            )
        was, now = (found[1], found[2]), (found[3], found[4])
        _require(was, old, f"--provider-map {text}: the old run")
        _require(now, new, f"--provider-map {text}: the new run")
        if was in mapped:
            raise UsageError(f"--provider-map {text}: {':'.join(was)} is mapped already; compare with one at a time")
        mapped[was] = now
    return mapped


def _require(layer: Layer, report: Report, where: str) -> None:
    there = dict.fromkeys(
        f"{verdict.axes['provider']}:{verdict.axes['api']}" for verdict in report.verdicts if verdict.axes
    )
    if ":".join(layer) not in there:
        raise UsageError(f"{where} has no case of {':'.join(layer)}; it has those of {', '.join(there) or 'no layer'}")
