"""How is a known file changed without losing what somebody wrote there? As text: lines are added, or left out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from gradcheck_cli.errors import UsageError
from gradcheck_cli.known_file import HEADER, parse
from gradcheck_cli.records.known import KnownFailure

_WHERE = ("place", "line")


def appended(text: str, entries: Sequence[KnownFailure], name: str) -> str:
    """The text with more entries at its end, and what was there untouched."""
    end = "\r\n" if "\r\n" in text else "\n"
    whole = text if not text or text.endswith("\n") else text + end
    for entry in entries:
        whole += (end if whole else "") + written(entry).replace("\n", end)
    if _told(parse(whole, name)) != _told([*parse(text, name), *entries]):
        _by_hand(name)
    return whole


def without(text: str, entries: Sequence[KnownFailure], name: str) -> str:
    """The text without some entries and the comments right above them; every other line is left as it is."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # not splitlines, which knows ends of a line that TOML does not
    heads = [at for at, line in enumerate(lines) if HEADER.match(line)]
    gone = {entry.line - 1 for entry in entries}
    starts = [_comments_above(lines, at) for at in heads]
    ends = [*starts, len(lines)][1:]
    cut = {n for at, start, end in zip(heads, starts, ends, strict=True) if at in gone for n in range(start, end)}
    shorter = "".join(line for number, line in enumerate(lines) if number not in cut)
    if _told(parse(shorter, name)) != _told([entry for entry in parse(text, name) if entry.line - 1 not in gone]):
        _by_hand(name)
    return shorter


def written(entry: KnownFailure) -> str:
    """One entry as it stands in a file."""
    versions = ", ".join(f"{name} = {_quoted(text)}" for name, text in entry.versions.items())
    said = {
        "expression": _quoted(entry.expression),
        "outcome": _quoted(entry.outcome.value),
        "role": entry.role and _quoted(entry.role),
        "diagnosis": entry.diagnosis and _quoted(entry.diagnosis),
        "message": entry.message and _quoted(entry.message),
        "versions": versions and f"{{ {versions} }}",
        "architecture": entry.architecture and f"[{', '.join(map(_quoted, entry.architecture))}]",
        "link": _quoted(entry.link),
        "owner": _quoted(entry.owner),
        "expires": str(entry.expires),
        "note": entry.note and _quoted(entry.note),
    }
    return "\n".join(["[[known]]", *(f"{key} = {value}" for key, value in said.items() if value), ""])


def _quoted(text: str) -> str:
    """A TOML string: a literal one where the text has double quotes, as expressions have."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _comments_above(lines: list[str], at: int) -> int:
    while at and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _told(entries: Sequence[KnownFailure]) -> list[tuple[Any, ...]]:
    """What entries say, wherever they stand."""
    fields = [name for name in KnownFailure.__struct_fields__ if name not in _WHERE]
    return [tuple(getattr(entry, name) for name in fields) for entry in entries]


def _by_hand(name: str) -> NoReturn:
    raise UsageError(f"{name}: expected entries that each begin with a line [[known]]; change this file by hand")
