"""Which few cases hold every pair of axis values? Writes the cover of a matrix file, and says what a cover covers.

To write one takes covertable (https://covertable.walkframe.com), which development has; to use one takes nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gradcheck_cli import matrix, plugins
from gradcheck_cli.constraints import CONSTRAINTS, Constraint
from gradcheck_cli.records.case import Case

Values = dict[str, list[Any]]


def written(path: Path) -> str:
    """The cover of a matrix file as text: the ids of every built-in layer, each in a line, as they were generated."""
    block = matrix.covered(matrix.load(str(path)))
    values = {axis.name: list(axis.values) for axis in block.axes}
    lines = [
        f"# Every {block.cover} values of {path.name}, layer by layer; written by `python -m gradcheck_cli.cover`."
    ]
    for provider, api in layers():
        lines += [str(case) for case in cover(provider, api, values, block.cover)]
    return "\n".join(lines) + "\n"


def layers() -> list[tuple[str, str]]:
    """The layers that have covers of their own; any other takes that of the first torch layer."""
    return [(name, api) for name in ("te", "torch") for api in plugins.BUILT_IN[name].apis]


def cover(provider: str, api: str, values: Values, strength: int) -> Iterator[Case]:
    """Cases that together have every `strength` values that the constraints allow together."""
    from covertable import make  # noqa: PLC0415  only who writes a cover has it

    rules = [
        {"operator": "fn", "requires": list(group), "evaluate": _allowed(rule, group, provider, api)}
        for rule in CONSTRAINTS
        for group in rule.about
    ]
    for row in make(values, strength=strength, constraints=rules):
        yield Case(provider=provider, api=api, **{name: row[name] for name in values})


def _allowed(rule: Constraint, group: tuple[str, ...], provider: str, api: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: not rule.rejects(Case(provider=provider, api=api, **{name: row[name] for name in group}))


def combinations(cases: Iterable[Case], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """Every `strength` axis values that some case has together."""
    rows = [tuple(case.axes().items()) for case in cases]
    return {some for row in rows for some in itertools.combinations(row, strength)}


if __name__ == "__main__":
    for name in sys.argv[1:] or ["cases/full.toml"]:
        file = Path(name).with_suffix(".cover")
        file.write_text(written(Path(name)), encoding="utf-8")
        sys.stdout.write(f"{file}\n")
