"""Was anything written that nobody asked for? Inputs, parameters and the memory around buffers: no tolerance."""

from __future__ import annotations

import re
from typing import NamedTuple

from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.verdict import Finding, Outcome

_EXPERT = re.compile(r"(?P<kind>.+)\[(?P<expert>[0-9]+)\]")


class Disturbance(NamedTuple):
    """One thing that was found changed, and when."""

    name: str
    when: str

    @property
    def kind(self) -> str:
        """The name without the number of an expert."""
        named = _EXPERT.fullmatch(self.name)
        return named["kind"] if named else self.name

    @property
    def experts(self) -> list[int]:
        """The expert in the name, if there is one."""
        named = _EXPERT.fullmatch(self.name)
        return [int(named["expert"])] if named else []


def bystanders(observation: Observation) -> list[Finding]:
    """UNEXPECTED for each kind of thing that did not keep its bits; the first time is told, and all its experts."""
    kinds: dict[str, list[Disturbance]] = {}
    for channel in observation.channels:
        for phase in channel.phases:
            when = f"after the {phase.phase} of microbatch {phase.microbatch}, {channel.fill} data"
            for name in () if phase.mutant else phase.disturbed:
                seen = Disturbance(name, when)
                kinds.setdefault(seen.kind, []).append(seen)
    return [_finding(kind, seen) for kind, seen in kinds.items()]


def _finding(kind: str, seen: list[Disturbance]) -> Finding:
    first = seen[0]
    if kind.startswith("guard"):
        side, tensor = kind.split()[1:3]
        why = f"expected the memory {side} {tensor} to stay as it was, bit for bit; found it written"
        diagnosis = f"written {side} {tensor}"
    else:
        why = f"expected {first.name} to hold what the candidate was given, bit for bit; found it changed"
        diagnosis = f"{kind} changed"
    return Finding(
        slot=first.name if first.experts else "case",
        outcome=Outcome.UNEXPECTED,
        why=f"{why} ({first.when})",
        diagnosis=diagnosis,
        experts=sorted({expert for one in seen for expert in one.experts}),
    )
