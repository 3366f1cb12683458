"""In which order does a trainer take a layer through its phases, and what must be true after each of them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import stepped_after, steps_of
from gradcheck_cli.records.observation import Phase


class Turn(NamedTuple):
    """One phase, and the microbatches that it is of: a backward through tied weights is of two."""

    phase: Phase
    microbatches: tuple[int, ...]


# What a phase may leave changed; all else is as it was, bit for bit.
LEAVES: dict[Phase, str] = {
    "move": "where the parameters lie, and in which dtype",
    "forward": "the output, and no gradient anywhere",
    "inference": "nothing at all: neither a gradient nor an output that waits for its backward",
    "backward": "x.grad, and of the parameters the gradients that are not left to backward_dw",
    "backward_dw": "the gradients of the weights",
    "step": "the weights that learn, and their gradients zeroed",
}


def sequence(case: Case) -> Iterator[Turn]:
    """Every phase of a case, in order."""
    if case.moved != "none":
        yield Turn("move", (0,))
    waiting: list[tuple[int, ...]] = []
    for step in steps_of(case):
        for k in step:
            yield Turn("forward", (k,))
            if case.inference != "none" and not reused(case, k):
                yield Turn("inference", (k,))
        waiting.append(step)
        if case.pipelined and len(waiting) < 2 and step[-1] < case.microbatches - 1:
            continue
        for due in waiting:
            yield from _backward(case, due)
        waiting.clear()


def _backward(case: Case, step: tuple[int, ...]) -> Iterator[Turn]:
    yield Turn("backward", step)
    if case.delay_wgrad_compute:
        yield Turn("backward_dw", step)
    if stepped_after(case, step[-1]):
        yield Turn("step", step[-1:])


def reused(case: Case, microbatch: int) -> bool:
    """Whether a microbatch goes backward through the graph of the one before, so that no forward is run for it."""
    return case.retain_graph and microbatch % 2 == 1
