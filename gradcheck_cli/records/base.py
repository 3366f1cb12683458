"""What is every record? A frozen, keyword-only struct that reads and writes JSON strictly."""

from __future__ import annotations

from typing import TypeVar

import msgspec

SCHEMA_VERSION = 1
# Of observations: what an older version did not look at cannot be judged as if it had. 2: the range probe, mutants,
# poison and disturbed inputs.
OBSERVATION_VERSION = 2

R = TypeVar("R", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, compared by value, every field named."""


def to_json(record: Record) -> str:
    """One line of JSON; floats must be finite (JSON has no infinity, and msgspec would write null)."""
    return msgspec.json.encode(record).decode()


def from_json(text: str | bytes, kind: type[R]) -> R:
    """Read one record back; msgspec.ValidationError where the text is not that record."""
    return msgspec.json.decode(text, type=kind)
