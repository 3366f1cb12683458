"""Was anything changed that nobody asked for? Inputs, parameters and the memory around buffers: no tolerance."""

from __future__ import annotations

import re
from typing import NamedTuple

from gradcheck_cli.records.observation import DATA, Observation
from gradcheck_cli.records.verdict import Finding, Outcome

_EXPERT = re.compile(r"(?P<kind>.+)\[(?P<expert>[0-9]+)\]")


class Expectation(NamedTuple):
    """What is expected of a thing, what is found instead, and what that is called; `{}` stands for the thing."""

    why: str
    diagnosis: str


# The beginning of a name -> what was expected of the rest of it; of what begins otherwise, that it holds its bits.
EXPECTED = {
    "guard before ": Expectation(
        "expected the memory before {} to stay as it was, bit for bit; found it written", "written before {}"
    ),
    "guard after ": Expectation(
        "expected the memory after {} to stay as it was, bit for bit; found it written", "written after {}"
    ),
    "memory of ": Expectation(
        "expected {} to stay in the memory that the candidate was given; found it in other memory",
        "memory of {} changed",
    ),
    "layout of ": Expectation(
        "expected {} to keep its shape, its strides and its place in its storage; found others", "layout of {} changed"
    ),
    "dtype of ": Expectation(
        "expected the memory of {} to hold elements of the dtype that it was given in, which is what it says; found "
        "others: the layer multiplies what no cast of the parameter reaches",
        "elements of {} in another dtype",
    ),
    "requires_grad of ": Expectation(
        "expected {} to be left with the requires_grad that it had; found the other, so that gradients no longer reach "
        "it, or reach it though it is frozen",
        "requires_grad of {} changed",
    ),
    "identity of ": Expectation(
        "expected {} to stay the parameter that an optimizer holds; found another in its place", "{} replaced"
    ),
    "overlap in ": Expectation(
        "expected each element of {} in memory of its own; found elements that share theirs, with each other or with "
        "another gradient, so that an optimizer works on them twice or raises",
        "elements of {} share memory",
    ),
    "gradient in ": Expectation(
        "expected {} to stay as it was, bit for bit, in a phase that brings no gradient; found it changed", "{} changed"
    ),
    "setting of ": Expectation(
        "expected {} to be left as it was, for the whole process has it; found it changed, so that whatever runs next "
        "would run otherwise",
        "{} changed",
    ),
    "output": Expectation(
        "expected the output{} to stay as the forward left it until its backward, bit for bit; found it changed",
        "output{} changed",
    ),
    "": Expectation("expected {} to hold what the candidate was given, bit for bit; found it changed", "{} changed"),
}


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

    @property
    def slot(self) -> str:
        """The parameter of one expert in the name, `weight[3]`; of anything else it is the case that has it."""
        return self.name.rpartition(" ")[2] if self.experts else "case"


def bystanders(observation: Observation) -> list[Finding]:
    """UNEXPECTED for each kind of thing that did not stay as it was; the first time is told, and all its experts."""
    kinds: dict[str, list[Disturbance]] = {}
    for channel in observation.channels:
        for phase in channel.phases:
            when = f"after the {phase.phase} of microbatch {phase.microbatch}, {DATA[channel.fill]}"
            when += f", repeat {phase.repeat}" if phase.repeat else ""
            for name in () if phase.mutant else phase.disturbed:
                seen = Disturbance(name, when)
                kinds.setdefault(seen.kind, []).append(seen)
    return [_finding(kind, seen) for kind, seen in kinds.items()]


def _finding(kind: str, seen: list[Disturbance]) -> Finding:
    first = seen[0]
    beginning = next(one for one in EXPECTED if kind.startswith(one))
    expectation = EXPECTED[beginning]
    return Finding(
        slot=first.slot,
        outcome=Outcome.UNEXPECTED,
        why=f"{expectation.why.format(first.name.removeprefix(beginning))} ({first.when})",
        diagnosis=expectation.diagnosis.format(kind.removeprefix(beginning)),
        experts=sorted({expert for one in seen for expert in one.experts}),
    )
