"""What is a constraint? Why a combination of axis values means nothing, and which ones do."""

from __future__ import annotations

from collections.abc import Callable

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case


class Constraint(Record, frozen=True, kw_only=True):
    """What makes a combination meaningless on every machine; what one machine cannot do is REFUSED there instead."""

    name: str
    why: str
    rejects: Callable[[Case], bool]
    # Groups of axes of which each is enough to be rejected for, whatever the others are: what a cover is made by.
    about: tuple[tuple[str, ...], ...]
    in_matrices: bool = False  # a case that is asked for by its id may have it all the same
