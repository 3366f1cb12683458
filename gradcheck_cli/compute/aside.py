"""Does all that a phase launches go to the stream it was called on? What does not comes too early, or too late.

Streams are ordered by events alone here. Were all of them idle, a kernel on the wrong one would be as right as any: so
that one of the two streams always has something to wait for first, once the one, once the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# What a phase leaves is told to this at its end, still on its stream: that is what the next kernel there would read.
Settle = Callable[[Sequence[torch.Tensor]], None]

# Clock cycles that a stream is kept waiting, some 20 ms of a GPU at 2 GHz: longer than a phase of a small layer takes.
CYCLES = 40_000_000


def unsettled(_: Sequence[torch.Tensor]) -> None:
    """Of what did not run on a stream aside there is nothing to tell apart."""


@contextmanager
def on_a_stream(aside: torch.cuda.Stream, given: Sequence[torch.Tensor], *, late: bool) -> Iterator[Settle]:
    """Run something on a stream that waits for all before it, and that all after it waits for.

    `late`: what is given gets its content on that stream, after a while, and is NaN until then: kernels on another one
    do not wait for it. Otherwise the other one is kept waiting, and what is launched there has not run when `settle`
    reads on this one. What was read then is what the tensors hold in the end.
    """
    here = torch.cuda.current_stream(aside.device)
    whole = [one.detach() for one in given if late and 0 not in one.stride()]
    kept = [one.clone() for one in whole]
    for one in whole:
        one.fill_(torch.nan)
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    aside.wait_stream(here)
    if not late:
        torch.cuda._sleep(CYCLES)  # noqa: SLF001  torch has no public kernel that only takes time
    with torch.cuda.stream(aside):
        if late:
            torch.cuda._sleep(CYCLES)  # noqa: SLF001
        for one, content in zip(whole, kept, strict=True):
            one.copy_(content)
        yield lambda left: read.extend((one, one.detach().clone()) for one in left)
    here.wait_stream(aside)
    torch.cuda.synchronize(aside.device)
    for one, content in read:
        one.data.copy_(content)  # autograd need not know: it is what is there
