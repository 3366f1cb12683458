"""Where may a long line break? At blanks and nowhere else: half a path or half a name cannot be copied or searched."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from gradcheck_cli.reporters.plain_text import printable

_ENDLESS = 10_000


def folded(line: str, width: int) -> str:
    """The line in as many as the width asks for, the later ones indented; a word that is too long stands out."""
    indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def for_terminal(lines: Sequence[str]) -> str:
    """The lines folded to the terminal, or to COLUMNS; left as they are where there is neither."""
    width = terminal_width()
    return "\n".join(folded(printable(line), width) for line in lines)


def terminal_width() -> int:
    """The columns of the terminal, or COLUMNS; more than any line has where there is neither: a pipe has no width."""
    return shutil.get_terminal_size((_ENDLESS, 25)).columns
