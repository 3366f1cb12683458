"""How does foreign text stand in Markdown without being taken for marks?"""

from __future__ import annotations

import re

from gradcheck_cli.reporters.plain_text import one_line

_SPECIAL = re.compile(r"([\\`*_<>|\[\]~#@&])")


def escaped(text: str) -> str:
    """The text in one line, every mark in it escaped."""
    return escaped_part(one_line(text))


def escaped_part(text: str) -> str:
    """A part of a line, with the blanks at its ends."""
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """A code span in one line, fenced by more backticks than any run inside."""
    text = one_line(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, blank = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def row(cells: list[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"
