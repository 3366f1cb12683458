"""What would run, what must then hold, and what is there to run it with? Words for `list`, `show` and `providers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gradcheck_cli import installed, plugins, selection, unpacked
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge import contract as delivery
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.excerpt import shortened


def cases(asked: selection.Asked, te: Sequence[Path], *, excluded: bool) -> Iterator[str]:
    """The ids of a selection, one a line; with `excluded` also those left out, with constraint and reason.

    They are the same under every version: whether there is one decides what --provider auto means.
    """
    asked = msgspec.structs.replace(asked, te=next(iter(unpacked.every(te)), None))
    yield from (str(point) for point in selection.each(asked) if isinstance(point, Case))
    if excluded:
        left_out = (point for point in selection.each(asked) if isinstance(point, matrix.Excluded))
        yield from (f"{point.case}  EXCLUDED {point.constraint}: {point.why}" for point in left_out)


def contract(text: str) -> list[str]:
    """The delivery contract of one case; where a constraint excludes it, that first."""
    if ":api=" not in text:
        raise UsageError(
            f"{shortened(repr(text))} is not a case: expected provider:api=..., as `gradcheck list` prints them"
        )
    case = selection.parse(text)
    left_out = matrix.excluded(case, named=True)
    head = [str(case)] if left_out is None else [str(case), f"EXCLUDED by {left_out.constraint}: {left_out.why}"]
    return head + [f"  {line}" for line in delivery.in_words(case)]


def plugins_in_words() -> list[str]:
    """Every candidate, executor and reporter, built in or from a plug-in."""
    # rich is slow to import, and `list` has no use for it.
    from gradcheck_cli.reporters.formats import FORMATS  # noqa: PLC0415

    lines = ["candidates (--provider)"]
    for candidate in plugins.candidates().values():
        origin = "built in" if candidate.name in plugins.BUILT_IN else f"plug-in, entry point of {plugins.GROUP}"
        here = installed.closed(candidate) or f"{candidate.distribution} {installed.version(candidate.distribution)}"
        lines += [
            f"  {candidate.name}  {candidate.summary} ({origin})",
            f"    api={'|'.join(candidate.apis)}; here: {here}",
        ]
    for candidate in plugins.ON_PURPOSE.values():
        lines += [
            f"  {candidate.name}  {candidate.summary} (built in; only where it is asked for)",
            f"    {len(candidate.apis)} apis: gradcheck list --provider {candidate.name} --matrix smoke",
        ]
    lines += [f"  closed: {why}" for why in plugins.broken().values()]
    lines += ["executors (--executor)", "  local  one long-lived worker process per device (built in)"]
    lines += ["  ray  the same on the GPUs or processors of a Ray cluster (built in; needs gradcheck-cli[ray])"]
    lines += ["reporters (--format)", f"  {', '.join(FORMATS)} (built in); journal and observations are always written"]
    return [*lines, "matrices (--matrix)", *(f"  {name}  {about}" for name, about in matrix.available())]
