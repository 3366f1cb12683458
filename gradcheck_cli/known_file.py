"""Which failures does a known file name? Reads it, and finds the line of whatever is wrong in it."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gradcheck_cli import paths, toml_file
from gradcheck_cli.errors import UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.failure import named, worded
from gradcheck_cli.records.known import CPU, VERSIONED, KnownFailure
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.verdict import Outcome

SHIPPED = "known"
TO_FILL_IN = "TODO"  # what a proposal leaves to whoever takes it
_TO_FILL_IN_WITH = {"link": "the address of the bug report", "owner": "who looks after this failure"}
HEADER = re.compile(r"\s*\[\[\s*[\"']?known[\"']?\s*\]\]")
_TEXTS = ("expression", "outcome", "role", "diagnosis", "message", "link", "owner", "note")
_NEEDED = ("expression", "outcome", "link", "owner", "expires")
_KEYS = (*_TEXTS, "versions", "architecture", "expires")
# What never ran cannot be known to fail.
_OUTCOMES = [outcome.value for outcome in Outcome if not outcome.green and outcome is not Outcome.UNTESTED]


def locate(name_or_path: str) -> Path:
    """Where a known file lies: the one that is shipped by its name, any other by its path."""
    shipped = matrix.folder(Path(__file__).parent) / f"{SHIPPED}.toml"
    return shipped if name_or_path == SHIPPED else Path(name_or_path)


def load(name_or_path: str) -> list[KnownFailure]:
    """The entries of a known file; UsageError says what is wrong in it, and on which line."""
    path = locate(name_or_path)
    if not paths.is_file(path):
        raise UsageError(
            f"unknown known file {shortened(repr(name_or_path))}: expected {SHIPPED}, which is shipped, "
            f"or the path of a TOML file"
        )
    return parse(read(path), shown(path))


def read(path: Path) -> str:
    """The text of a known file, line ends as they are."""
    return toml_file.read(path)


def shown(path: Path) -> str:
    """How a file is named in a report that is passed on: the one that is shipped by its place in the project."""
    return f"cases/{SHIPPED}.toml" if path == locate(SHIPPED) else str(path)


def parse(text: str, name: str) -> list[KnownFailure]:
    """The entries of a text; `name` is what it is called in messages."""
    return _KnownFile(text, name).entries()


class _KnownFile:
    """A known file as text."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines = text.split("\n")
        self._heads = [at for at, line in enumerate(self._lines) if HEADER.match(line)]
        self._document = toml_file.document(text, name)

    def entries(self) -> list[KnownFailure]:
        """Every entry, checked, and none of them twice."""
        for key in self._document:
            if key not in ("description", "known"):
                raise self._wrong(
                    f"unknown key {shortened(repr(key))}: expected description, or entries under [[known]]", key
                )
        tables = self._document.get("known", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._wrong("expected entries under [[known]], in double brackets", "known")
        read: dict[tuple[Any, ...], KnownFailure] = {}
        for number, table in enumerate(tables):
            entry = self._entry(number, table)
            same = read.setdefault(_identity(entry), entry)
            if same is not entry:
                raise self._wrong(f"the same as the entry on line {same.line}; keep one of them", "", number)
        return list(read.values())

    def _entry(self, number: int, table: dict[str, Any]) -> KnownFailure:
        for key in table:
            if key not in _KEYS:
                raise self._wrong(
                    f"unknown key {shortened(repr(key))}: expected one of {', '.join(_KEYS)}", key, number
                )
        for key in _NEEDED:
            if key not in table:
                raise self._wrong(f"{key} is missing: an entry needs {', '.join(_NEEDED)}", "", number)
        texts = {key: self._text(key, table[key], number) for key in _TEXTS if key in table}
        self._compiles(texts["expression"], number)
        if "message" in texts and texts["outcome"] != Outcome.RAISED.value:
            raise self._wrong("message: expected it of outcome RAISED alone, which has an exception", "message", number)
        line = self._line("", number)
        return KnownFailure(
            place=f"{self._name}, line {line}",
            line=line,
            expression=texts["expression"],
            outcome=Outcome(self._one_of("outcome", texts["outcome"], _OUTCOMES, number)),
            role=self._one_of("role", texts["role"], get_args(Role), number) if "role" in texts else None,
            diagnosis=texts.get("diagnosis", ""),
            message=texts.get("message", ""),
            versions=self._versions(table.get("versions", {}), number),
            architecture=self._architecture(table.get("architecture", []), number),
            link=texts["link"],
            owner=texts["owner"],
            expires=self._date(table["expires"], number),
            note=texts.get("note", ""),
        )

    def _text(self, key: str, value: Any, number: int) -> str:
        if value == TO_FILL_IN and key in _TO_FILL_IN_WITH:
            why = f"{key} is still {TO_FILL_IN}: expected {_TO_FILL_IN_WITH[key]}"
            raise self._wrong(why, key, number)
        if not isinstance(value, str) or not value.strip():
            found = shortened(repr(value)) if value else "an empty one"
            raise self._wrong(f"{key}: expected a text in quotes, found {found}", key, number)
        return value.strip()

    def _one_of(self, key: str, value: str, allowed: Any, number: int) -> Any:
        if value not in allowed:
            raise self._wrong(f"{key} = {shortened(repr(value))}: expected one of {', '.join(allowed)}", key, number)
        return value

    def _compiles(self, expression: str, number: int) -> None:
        try:
            compile_expression(expression)
        except UsageError as error:
            raise self._wrong(f"expression: {str(error).removeprefix('-k: ')}", "expression", number) from None

    def _versions(self, value: Any, number: int) -> dict[str, str]:
        if not isinstance(value, dict):
            why = f'versions: expected a table such as {{ torch = ">=2.11" }}, found {shortened(repr(value))}'
            raise self._wrong(why, "versions", number)
        for name, specifier in value.items():
            if name not in VERSIONED:
                raise self._wrong(f"versions of {shortened(repr(name))}: expected {', '.join(VERSIONED)}", name, number)
            if not isinstance(specifier, str) or not _is_specifier(specifier):
                found = shortened(repr(specifier))
                why = f"versions of {name}: expected a specifier such as '>=2.17,<2.18' (PEP 440), found {found}"
                raise self._wrong(why, name, number)
        return dict(value)

    def _architecture(self, value: Any, number: int) -> list[str]:
        listed = value if isinstance(value, list) else [None]
        if not all(isinstance(one, str) and re.fullmatch(rf"sm\d{{2,3}}|{CPU}", one) for one in listed):
            why = (
                f'architecture: expected a list such as ["sm90", "sm100"], or ["{CPU}"], found {shortened(repr(value))}'
            )
            raise self._wrong(why, "architecture", number)
        return list(listed)

    def _date(self, value: Any, number: int) -> date:
        if not isinstance(value, date) or isinstance(value, datetime):
            why = f"expires: expected a day such as 2027-06-30, without quotes, found {shortened(repr(value))}"
            raise self._wrong(why, "expires", number)
        return value

    def _wrong(self, why: str, key: str, number: int | None = None) -> UsageError:
        return UsageError(f"{self._name}, line {self._line(key, number)}: {why}")

    def _line(self, key: str, number: int | None) -> int:
        """The line of a key, or of the head of its entry; tomllib keeps no positions."""
        head = self._heads[number] if number is not None and number < len(self._heads) else 0
        end = next((at for at in self._heads if at > head), len(self._lines)) if number is not None else None
        # A key of `versions` stands on a line of its own, or in braces behind others.
        is_key = re.compile(rf"""(^|[\s{{,\[.])["']?{re.escape(key)}["']?\s*[].=]""")
        found = (at for at in range(head, end or len(self._lines)) if key and is_key.search(self._lines[at]))
        return next(found, head) + 1


def _identity(entry: KnownFailure) -> tuple[Any, ...]:
    """What makes two entries the same, whoever looks after them, and until when."""
    words = " ".join(entry.expression.split())
    versions, where = sorted(entry.versions.items()), sorted(entry.architecture)
    fault = entry.outcome, entry.role, named(entry.diagnosis), worded(entry.message)
    return (words, *fault, tuple(versions), tuple(where))


def _is_specifier(text: str) -> bool:
    try:
        return bool(SpecifierSet(text))
    except InvalidSpecifier:
        return False
