"""Which report would an enemy make? One of every outcome, with hostile words wherever a candidate may put any."""

from __future__ import annotations

import random
from typing import Any

import hostile
import msgspec
import report_samples as samples
from hypothesis import strategies as st

from gradcheck_cli.records.known import Complaint
from gradcheck_cli.records.report import Report

_WORDS = [leaf for leaf in hostile.LEAVES if isinstance(leaf, str)]
_PLAIN = msgspec.to_builtins(
    msgspec.structs.replace(
        samples.every_outcome(),
        complaints=[Complaint(place="known.toml, line 3", kind="mended", why="expected a failure, found none")],
    )
)
# What is read back by its words, or counted: a report with others of these is refused before anybody renders it.
_OWN = {"outcome", "outcomes", "kind", "asked", "executed", "roles", "margins", "schema"}


def reports() -> st.SearchStrategy[Report]:
    """Every text that gradcheck does not choose itself may be hostile."""
    return st.builds(_hostile, st.integers(0, 1 << 32), st.sampled_from([0.02, 0.2, 1.0]))


def _hostile(seed: int, share: float) -> Report:
    dice = random.Random(seed)  # noqa: S311
    some = {**_PLAIN, "verdicts": dice.sample(_PLAIN["verdicts"], 4)}
    return msgspec.convert(_spoiled(some, dice, share), Report)


def _spoiled(value: Any, dice: random.Random, share: float) -> Any:
    if isinstance(value, dict):
        return {name: one if name in _OWN else _spoiled(one, dice, share) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_spoiled(one, dice, share) for one in value]
    if isinstance(value, str) and dice.random() < share:
        return dice.choice((value, "")) + dice.choice(_WORDS) + dice.choice(("", "\n", dice.choice(_WORDS)))
    return value
