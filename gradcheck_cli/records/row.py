"""What is a row of the capability table?"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.environment import Version
from gradcheck_cli.records.roles import CHAIN

# The fusible op, alone or as both layers of a chain.
OPS = ("op", CHAIN)


class Row(Record, frozen=True, kw_only=True):
    """One line of the table: for these cases and versions, these gates lead to this response.

    Exactly one of `says` (a pattern of the exception's message) and `falls_back_to` (what runs instead, silently:
    another value of some axis of `falls_back_on`) is given.
    """

    name: str
    provider: str
    api: str
    since: Version
    before: Version = (9999,)
    path: tuple[str, ...] = ("auto", "legacy", "native", "cutlass")
    on: Literal["", "legacy", "native"] = ""  # only where this path is the one that the candidate takes
    packed: bool | None = None  # a single grouped weight or bias
    gates: tuple[str, ...]
    says: str = ""
    raises: str = "RuntimeError"  # the type of the exception that says so
    in_backward: bool = False  # the candidate may say so as late as in the backward
    falls_back_to: str = ""
    falls_back_on: tuple[str, ...] = ("path",)
