"""Which few cases hold every pair of axis values? Writes the cover of a matrix file, and says what a cover covers.

`python -m gradcheck_cli.matrices.cover` writes those of `cases/` anew; with names of matrix files, theirs.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradcheck_cli import plugins
from gradcheck_cli.matrices import matrix
from gradcheck_cli.matrices.apart import APART
from gradcheck_cli.matrices.greedy import Ledger, rows
from gradcheck_cli.matrices.matrix_file import COVER, Block
from gradcheck_cli.matrices.space import Space, Values
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.reporters.folding import KEY


class Held(Record, frozen=True, kw_only=True):
    """Of the `strength` values that the constraints allow together in a layer: how many, and those that no case has."""

    allowed: int
    missing: list[list[tuple[str, Any]]]


def written(path: Path) -> str:
    """The cover of a matrix file as text: the ids of every built-in layer, each in a line, as they were generated."""
    block = matrix.covered(matrix.load(str(path)))
    lines = [
        f"# Every {block.cover} values of {path.name}, layer by layer; "
        f"written by `python -m gradcheck_cli.matrices.cover`."
    ]
    for provider, api in layers():
        lines += [str(case) for case in cover(provider, api, block)]
    return "\n".join(lines) + "\n"


def layers() -> list[tuple[str, str]]:
    """The layers that have covers of their own; any other takes that of the first torch layer."""
    return [(name, api) for name in ("te", "torch") for api in plugins.BUILT_IN[name].apis]


def cover(provider: str, api: str, block: Block, apart: Sequence[str] = APART) -> list[Case]:
    """Cases that together have every `block.cover` values that the constraints allow together.

    Of pairs, first those for which nothing of `apart` holds; then for each of it what cannot do without it, and nothing
    else of it beside; last what needs several. So a machine that refuses one of it misses little besides. They come in
    the order of the rows of a report's table.
    """
    whole = Space(provider, api, values(block))
    ledger = Ledger(whole, block.cover)
    of_a_row = [(name, own) for name, own in values(block).items() if name in KEY]
    # Every three of many: covertable gives up on so many exclusions (3,690 rows of te:module where it makes 310).
    apart = apart if block.cover == 2 else ()
    parts = [apart, *([other for other in apart if other != one] for one in apart), ()]
    found: list[list[int]] = []
    for avoided in parts:
        found += list(rows(Space(provider, api, values(block), avoided), ledger, found))
    return sorted(map(whole.case, found), key=lambda case: [own.index(getattr(case, name)) for name, own in of_a_row])


def held(provider: str, api: str, block: Block, cases: Iterable[Case]) -> Held:
    """What cases hold of what a layer's constraints allow."""
    space = Space(provider, api, values(block))
    ledger = Ledger(space, block.cover)
    for case in cases:
        ledger.strike(space.row(case))
    found = ledger.total - ledger.count()
    ledger.left &= ~ledger.barred(space)
    missing = [some for some in ledger.each() if space.example(space.together(some))]
    return Held(
        allowed=found + len(missing),
        missing=[[space.values[number] for number in some] for some in missing],
    )


def values(block: Block) -> Values:
    """The values of each axis of a block."""
    return {axis.name: list(axis.values) for axis in block.axes}


def combinations(cases: Iterable[Case], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """Every `strength` axis values that some case has together."""
    found = [tuple(case.axes().items()) for case in cases]
    return {some for row in found for some in itertools.combinations(row, strength)}


def _write(file: Path) -> str:
    """What was written, and what it holds."""
    target = file.with_suffix(COVER)
    target.write_text("", encoding="utf-8")  # what an axis was called before must not be in the way
    target.write_text(written(file), encoding="utf-8")
    block = matrix.covered(matrix.load(str(file)))
    said = [str(target)]
    for provider, api in layers():
        own = [case for case in block.listed if (case.provider, case.api) == (provider, api)]
        now = held(provider, api, block, own)
        said.append(
            f"  {provider}:{api}: {len(own)} cases hold {now.allowed - len(now.missing):,} of {now.allowed:,} "
            f"combinations of {block.cover} values that the constraints allow"
        )
    return "\n".join(said)


def _with_cover(folder: Path) -> list[str]:
    """The matrix files that ask for one, whether or not it is there."""
    return [str(path) for path in sorted(folder.glob("*.toml")) if re.search(r"(?m)^cover\b", path.read_text("utf-8"))]


if __name__ == "__main__":
    for name in sys.argv[1:] or _with_cover(Path("cases")):
        sys.stdout.write(f"{_write(Path(name))}\n")
        sys.stdout.flush()
