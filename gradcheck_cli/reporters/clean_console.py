"""How is foreign text kept from steering a terminal? A console that prints words and its own colours alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gradcheck_cli.reporters.plain_text import printable


class CleanConsole(Console):
    """A console that takes no text for marks of rich, and lets no control character of a text through.

    All that is printed passes here, whatever it was put together by: a table's cell, a path, a line of JSON.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments, their words printable; what rich itself says to the terminal is a control segment."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
