"""Which faults come and go? Layers of the provider `faults` that are wrong, or only other, now and then."""

from __future__ import annotations

from typing import NamedTuple

from gradcheck_cli.records.observation import Role


class Chance(NamedTuple):
    """What a layer does now and then; an api of the provider `faults`."""

    summary: str
    role: Role
    cites: str  # a public bug as CONTRIBUTING.md lists them
    rate: float  # of the layers that are built: one for each kind of data, and each repeat
    wrong: bool  # whether a value is, and not only the bits other than the last time


CHANCES: dict[str, Chance] = {
    "wgrad_other_order": Chance("sums the tokens in another order, which is as right", "wgrad", "K7", 0.5, wrong=False),
    "bgrad_lost_update": Chance("loses half of one element, as in a race", "bgrad", "H3", 0.25, wrong=True),
}
