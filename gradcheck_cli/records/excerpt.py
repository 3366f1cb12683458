"""How much of a foreign text may a message repeat? Its head, and how much more there is."""

from __future__ import annotations

_LONGEST = 200


def shortened(value: object, limit: int = _LONGEST) -> str:
    """The value as text; where that is longer than the limit, its head and a word on what was cut."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit:,} more characters)"
