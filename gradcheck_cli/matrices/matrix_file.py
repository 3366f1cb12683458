"""What does a matrix file say? Blocks of axes and their values, each checked; what is wrong is told by its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gradcheck_cli import plugins, toml_file
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import ALIASES, AXES, Case
from gradcheck_cli.records.excerpt import shortened

NOT = "not "
COVER = ".cover"


class Axis(Record, frozen=True, kw_only=True):
    """The values that one block gives to one dimension, in the order in which they are tried."""

    name: str
    values: tuple[Any, ...]


class Block(Record, frozen=True, kw_only=True):
    """The product of some axes, the first named varying slowest; or, with a cover, those of its cases that it lists.

    `cover` is how many values stand together in one of them whenever the constraints allow it, 0 for the product.
    """

    axes: tuple[Axis, ...]
    cover: int = 0
    listed: tuple[Case, ...] = ()


class Matrix(Record, frozen=True, kw_only=True):
    """Blocks of axes, and where they are from; those of the matrices that it includes come after its own."""

    name: str
    description: str
    blocks: tuple[Block, ...]
    include: tuple[str, ...] = ()


def _not_this(value: str) -> str:
    """`not te:module`: all apis but this one of this provider, so that every other provider keeps all of its own."""
    provider, separator, api = value.removeprefix(NOT).partition(":")
    if not separator:
        raise ValueError(f"api={shortened(value)}: expected `not provider:api`, such as `not te:module`")
    plugins.axis_value("provider", provider)
    plugins.axis_value("api", api)
    return value


def _case(line: str, where: str) -> Case:
    try:
        return Case.parse(line)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


class MatrixFile:
    """A matrix as text: reads it, and finds the line of whatever is wrong in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = toml_file.read(path)
        self._lines = self._text.split("\n")  # a line of TOML ends there and nowhere else

    def document(self) -> dict[str, Any]:
        """The file as TOML, whatever it says."""
        return toml_file.document(self._text, str(self._path))

    def read(self) -> Matrix:
        """The matrix, every value checked."""
        document = self.document()
        for key in document:
            if key not in ("description", "include", "block"):
                raise self._wrong(
                    f"unknown key {shortened(repr(key))}: expected description, include, or axes under [[block]]", key
                )
        include = document.get("include", [])
        if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
            raise self._wrong("expected include = [...] with the names of matrices", "include")
        blocks = document.get("block", [] if include else None)
        if not isinstance(blocks, list) or not (blocks or include) or not all(isinstance(one, dict) for one in blocks):
            raise self._wrong("expected at least one [[block]], in double brackets, with axes; found none", "block")
        return Matrix(
            name=self._path.stem,
            description=str(document.get("description", "")),
            blocks=tuple(self._block(number, block) for number, block in enumerate(blocks)),
            include=tuple(include),
        )

    def _block(self, number: int, block: dict[str, Any]) -> Block:
        axes: dict[str, Axis] = {}
        strength = block.get("cover", 0)
        if type(strength) is not int or strength not in (0, 2, 3):
            raise self._wrong(
                f"cover = {shortened(strength)}: expected how many values to cover together, 2 or 3", "cover", number
            )
        for key, value in block.items():
            if key == "cover":
                continue
            name = ALIASES.get(key, key)
            if name not in AXES:
                raise self._wrong(
                    f"unknown axis {shortened(repr(key))}: expected one of {', '.join(AXES)}", key, number
                )
            if name in axes:
                raise self._wrong(f"{name} stands twice in this block, here as {key}; keep one of them", key, number)
            values = value if isinstance(value, list) else [value]
            if not values:
                raise self._wrong(f"{key} = [] leaves no case; name a value, or drop the line", key, number)
            axes[name] = Axis(name=name, values=tuple(self._value(name, key, number, one) for one in values))
        return Block(axes=tuple(axes.values()), cover=strength, listed=self._listed() if strength else ())

    def _listed(self) -> tuple[Case, ...]:
        """The cases of the cover that lies beside the file; none where it has yet to be written."""
        path = self._path.with_suffix(COVER)
        text = toml_file.read(path, "the ids of cases, each in a line, in UTF-8") if path.is_file() else ""
        numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and line[0] != "#"]
        return tuple(_case(line, f"{path}, line {number}") for number, line in numbered)

    def _value(self, name: str, key: str, number: int, value: Any) -> Any:
        if isinstance(value, list) and name != "m_splits":
            raise self._wrong(f"{key}: expected a value or a list of values, found a list in it", key, number, value)
        negated = name == "api" and str(value).startswith(NOT)
        try:
            checked = _not_this(str(value)) if negated else plugins.axis_value(name, value)
        except ValueError as error:
            bare = name == "m_splits" and isinstance(value, int)
            hint = "; a list of splits has brackets of its own: [[64, 0, 128]]" if bare else ""
            raise self._wrong(f"{error}{hint}", key, number, value) from None
        return checked

    def _wrong(self, why: str, key: str, block: int | None = None, value: Any = None) -> UsageError:
        return UsageError(f"{self._path}, line {self._line(key, block, value)}: {why}")

    def _line(self, key: str, block: int | None, value: Any) -> int:
        """Line of a key, or of its value where that has a line of its own; tomllib keeps no positions."""
        lines = self._lines
        headers = [at for at, line in enumerate(lines) if re.match(r"\s*\[+\s*block\b", line)]
        start = headers[block] if block is not None and block < len(headers) else 0
        is_key = re.compile(rf"\s*[\[\"']*\s*{re.escape(key)}\b[\"']?\s*[]=]")
        at = next((at for at in range(start, len(lines)) if is_key.match(lines[at])), start)
        spelled = re.compile(rf"(?<!\w){re.escape(str(value))}(?!\w)")
        for later in range(at, len(lines)):
            if later > at and re.match(r"""\s*(\[\[|["'\w-]+\s*=)""", lines[later]):
                break
            if spelled.search(lines[later].partition("#")[0]):
                return later + 1
        return at + 1
