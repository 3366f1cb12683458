"""What of a foreign text may be printed? Exceptions and a worker's last output can hold anything."""

from __future__ import annotations

import re

# Terminal colours and cursor movements, then what neither XML 1.0 (its production Char) nor a terminal should get, and
# what turns the direction of the text behind it, so that it reads otherwise than it is (https://trojansource.codes).
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def printable(text: str) -> str:
    """The text without escape sequences, control characters and lone surrogates; lines end in a newline alone."""
    unified = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub("", _ESCAPES.sub("", unified))


def one_line(text: str) -> str:
    """The printable text with every run of white space as one blank."""
    return " ".join(printable(text).split())


def excerpt(text: str, limit: int) -> str:
    """The printable text in one line; where it is longer than the limit, its head and a word on what was cut."""
    line = one_line(text)
    if len(line) <= limit:
        return line
    return f"{line[:limit].rstrip()} ... ({len(line) - limit} more characters in report.json)"
