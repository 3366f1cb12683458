"""How do the verdicts of a large run fit into memory? What many of them have alike is kept once."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from gradcheck_cli.records.verdict import Verdict

_ALIKE = ("roles", "findings", "margins", "effective", "kernels", "channels", "notes", "mutants")
# What differs from case to case is not worth looking for: past so many kinds of it, none is kept for those to come.
_MOST = 20_000


class Sharing:
    """Of equal parts of verdicts, which nobody changes, the first stands for all."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._axes: dict[str, dict[str, str | int]] = {}  # by case, of which two runs have the same

    def verdict(self, one: Verdict) -> Verdict:
        """The same verdict, made of what those before it were made of."""
        axes = self._axes.get(one.case)
        if axes != one.axes:
            axes = {name: sys.intern(value) if isinstance(value, str) else value for name, value in one.axes.items()}
            self._axes[one.case] = axes
        parts = {name: self._first(name, getattr(one, name)) for name in _ALIKE}
        return msgspec.structs.replace(one, axes=axes, **parts)

    def _first(self, name: str, part: Any) -> Any:
        key = name.encode() + msgspec.json.encode(part)
        if len(self._kept) >= _MOST:
            return self._kept.get(key, part)
        return self._kept.setdefault(key, part)
