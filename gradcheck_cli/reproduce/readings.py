"""How does a text read, its escapes decoded? A colour, a written newline, `%2F` and `&lt;` hide what follows."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

# Each may itself stand in an address, once or more often: %1B, %251B.
_OF_A_URL = r"%(?:25)*"
_BACKSLASHES = rf"(?:\\|{_OF_A_URL}5[Cc]){{1,16}}"
_BRACKET = rf"(?:\[|{_OF_A_URL}5[Bb])"
_COLOUR = (
    rf"(?:\x1b|{_OF_A_URL}1[Bb]|{_BACKSLASHES}(?:x1b|u001b|033|e))"
    rf"(?:{_BRACKET}(?:[0-?]|{_OF_A_URL}3[0-9A-Fa-f])*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\))"
)
_ESCAPE = re.compile(
    rf"(?P<nothing>{_COLOUR}|[\x00-\x08\x0e-\x1f\x7f\u00ad\u200b-\u200f\u2060\ufeff])"
    rf"|{_BACKSLASHES}(?:x(?P<byte>[0-9A-Fa-f]{{2}})|u(?P<point>[0-9A-Fa-f]{{4}})|(?P<letter>[abfnrtv0\"'/`]))"
    rf"|(?P<wide>(?:{_OF_A_URL}[89A-Fa-f][0-9A-Fa-f])+)|{_OF_A_URL}(?P<percent>[0-9A-Fa-f]{{2}})"
    r"|(?P<entity>&(?:lt|gt|amp|quot|apos|nbsp|\#\d{1,6}|\#x[0-9A-Fa-f]{1,5});)"
)
_LETTERS = {"a": " ", "b": " ", "f": " ", "n": "\n", "r": "\n", "t": "\t", "v": " ", "0": " "}


class Rule(NamedTuple):
    """What is replaced: the group `it` of each match, by the mark, or by what the function makes of the match.

    Of a match that the function answers with None nothing is replaced.
    """

    pattern: re.Pattern[str]
    mark: str | Callable[[re.Match[str]], str | None]


class _Reading(NamedTuple):
    """A text as it reads, in pieces: where each begins here, and where it begins and ends in what was written."""

    text: str
    begins: list[int]
    pieces: list[tuple[int, int, bool]]  # start and end as written, and whether it is an escape

    def written(self, start: int, end: int) -> tuple[int, int]:
        """Where a span of the reading stands in what was written."""
        return self._place(start, end=False), self._place(end - 1, end=True)

    def _place(self, at: int, *, end: bool) -> int:
        piece = bisect_right(self.begins, at) - 1
        first, last, escape = self.pieces[piece]
        if escape:
            return last if end else first
        return first + at - self.begins[piece] + end


WRITTEN, GAPS, JOINED = None, " ", ""  # as it is written; or escapes decoded, and of colours a blank or nothing left
WRITTEN_FIRST = (WRITTEN, GAPS, JOINED)
READ_FIRST = (GAPS, JOINED, WRITTEN)


def replaced(text: str, rules: list[Rule], ways: tuple[str | None, ...] = READ_FIRST) -> str:
    """The text after each rule in turn, in one way of reading it after the other."""
    for gap in ways:
        reading = _reading(text, gap)
        for rule in rules if reading else ():
            changed = _by(text, rule, reading) if reading else text
            if changed != text:
                text, reading = changed, _reading(changed, gap)
    return text


def readings(text: str) -> Iterator[str]:
    """The text as it is written, and as it reads where that differs."""
    yield from (reading.text for gap in WRITTEN_FIRST if (reading := _reading(text, gap)))


def _reading(text: str, gap: str | None) -> _Reading | None:
    """None where nothing in it reads in another way."""
    if gap is None:
        return _Reading(text, [0], [(0, len(text), False)])
    parts, begins, pieces, at, here = [], [], [], 0, 0
    for found in _ESCAPE.finditer(text):
        for start, end, read in (
            (at, found.start(), text[at : found.start()]),
            (found.start(), found.end(), _meant(found, gap)),
        ):
            parts.append(read)
            begins.append(here)
            pieces.append((start, end, start == found.start() and end == found.end()))
            here += len(read)
        at = found.end()
    if not pieces:
        return None
    return _Reading("".join([*parts, text[at:]]), [*begins, here], [*pieces, (at, len(text), False)])


def _meant(escape: re.Match[str], gap: str) -> str:
    kind, found = escape.lastgroup, escape[escape.lastgroup or 0]
    if kind == "nothing":
        return gap
    if kind == "letter":
        return _LETTERS.get(found, found)
    if kind == "entity":
        return html.unescape(found)[:1]
    if kind == "wide":
        return unquote(re.sub("%(?:25)+", "%", found))
    # A byte beyond ASCII is a part of a letter of which nothing more is known.
    return " " if kind == "byte" and int(found, 16) > 0x7F else chr(int(found, 16))


def _by(text: str, rule: Rule, reading: _Reading) -> str:
    parts, at = [], 0
    for found in rule.pattern.finditer(reading.text):
        mark = rule.mark if isinstance(rule.mark, str) else rule.mark(found)
        group = "it" if "it" in rule.pattern.groupindex else 0
        if mark is None or found.start(group) >= found.end(group):  # of a mark among the names, `it` is no part
            continue
        start, end = reading.written(*found.span(group))
        parts += [text[at:start], mark]
        at = end
    return "".join([*parts, text[at:]])
