"""What do known files look like? Entries as somebody writes them, one part changed at a time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

TODAY = datetime.now(timezone.utc).date()
LINK = "https://example.org/issues/7"
# What the run of `test_known` shows, failure by failure.
UNNAMED = {"expression": '"api=wgrad_doubled"', "outcome": '"INEXACT"'}
DOUBLED = UNNAMED | {"role": '"wgrad"', "diagnosis": '"doubled"'}
UNTOUCHED = {
    "expression": '"api=wgrad_untouched and fuse_wgrad"',
    "outcome": '"MISSING"',
    "role": '"wgrad"',
    "diagnosis": '"untouched"',
}
BOTH = {
    "expression": '"api=wgrad_in_both and not fuse_wgrad"',
    "outcome": '"UNEXPECTED"',
    "role": '"wgrad"',
    "diagnosis": '"main_grad written"',
}
ALL = (DOUBLED, UNTOUCHED, BOTH)

_LOOKED_AFTER = {"link": f'"{LINK}"', "owner": '"me"', "expires": str(TODAY + timedelta(days=1))}


def entry(*parts: dict[str, str], **changed: str | None) -> str:
    """One entry; None leaves a key out."""
    said: dict[str, str | None] = {}
    for part in parts:
        said |= part
    said |= changed
    said = said | {key: value for key, value in _LOOKED_AFTER.items() if key not in said}
    return "\n".join(["[[known]]", *(f"{key} = {value}" for key, value in said.items() if value is not None), ""])


def written(path: Path, *entries: str) -> Path:
    """A known file of these entries, a blank line between them."""
    path.write_text("\n".join(entries), encoding="utf-8")
    return path
