"""What is the smallest case that fails alike? Greedy: every change that keeps the failure is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.failure import Failure, worst_failure
from gradcheck_cli.records.minimised import Attempt, Minimised
from gradcheck_cli.records.verdict import Verdict

# Axes whose default is the simplest they can be; in this order, since what is tried first is what the report lacks.
SIZED = ("m_splits", "num_gemms", "tokens_per_expert", "in_features", "out_features", "microbatches")
# Last those that a fault is most often about: what is dropped first is what says least.
_LAST = ("grad_output", "bias", "path", "dtype", "fuse_wgrad_accumulation", "single_grouped_weight")
SWITCHES = ("seed", *(axis for axis in AXES[2:] if axis not in (*SIZED, *_LAST, "seed")), *_LAST)
# Tried upwards from the smallest: a shape below what a kernel takes fails otherwise, and the next larger one is tried.
SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Floor(NamedTuple):
    """The smallest sizes to try: what a search may not go below, unless the case already is."""

    num_gemms: int
    tokens_per_expert: int
    in_features: int
    out_features: int


# With one expert of 1 x 1 a reader asks whether it happens with real shapes: kernels are meant for multiples of 16, and
# as many rows as columns would hide which is which.
FLOORS = {"none": Floor(1, 0, 1, 1), "report": Floor(2, 4, 16, 32)}


class Budget(NamedTuple):
    """What a search may cost, and where it stops."""

    runs: int
    seconds: float
    floor: Floor = FLOORS["none"]


def minimise(
    case: Case,
    first: Verdict,
    judged: Callable[[Case], Verdict],
    budget: Budget,
    clock: Callable[[], float],
    told: Callable[[Attempt], None],
) -> Minimised:
    """Simplify until nothing simpler fails alike, or the budget is spent; `first` is the red verdict on the case.

    `clock` tells the seconds since the search began, the start of the worker and the run of `first` included. None is
    begun that would outlast the budget, if it took as long as the longest before. The same case, verdicts and budget
    of runs give the same trail. ValueError where `first` is green.
    """
    wanted = worst_failure(first)
    if wanted is None:
        raise ValueError(f"{case} is {first.outcome.value}: there is no failure to keep")
    trail, tried, stopped = list[Attempt](), {case}, ""
    # A worker that is lost is started anew for the next case.
    longest = clock() if wanted.outcome.no_end else first.seconds
    smallest, search, diagnosis = case, simpler(case, budget.floor), wanted.diagnosis
    while not stopped:
        step = next((one for one in search if one.case not in tried), None)
        if step is None:
            break
        began = clock()
        if len(trail) >= budget.runs or began + longest >= budget.seconds:
            stopped = f"its budget of {budget.runs} runs and {budget.seconds:g} s was spent"
            break
        tried.add(step.case)
        attempt = _attempt(step, judged(step.case), wanted)
        longest = max(longest, clock() - began)
        trail.append(attempt)
        told(attempt)
        if attempt.kept:
            smallest, search, diagnosis = step.case, simpler(step.case, budget.floor), attempt.diagnosis
    return Minimised(
        asked=str(case),
        case=str(smallest),
        role=wanted.role,
        outcome=wanted.outcome,
        diagnosis=diagnosis,
        trail=trail,
        seconds=clock(),
        stopped=stopped,
    )


class Step(NamedTuple):
    """A simpler case, and what makes it so."""

    case: Case
    change: str


def _attempt(step: Step, verdict: Verdict, wanted: Failure) -> Attempt:
    found = worst_failure(verdict, wanted)
    return Attempt(
        case=str(step.case),
        change=step.change,
        outcome=verdict.outcome,
        diagnosis=verdict.worst.diagnosis if verdict.worst else "",
        kept=found is not None and found.key == wanted.key,
        seconds=verdict.seconds,
    )


def simpler(case: Case, floor: Floor = FLOORS["none"]) -> Iterator[Step]:
    """Cases that are simpler by one change, the largest gains first."""
    default = Case(provider=case.provider, api=case.api)
    for axis in SWITCHES:
        if getattr(case, axis) != getattr(default, axis):
            yield _changed(case, axis, getattr(default, axis))
    for size in range(1, case.microbatches):
        yield _changed(case, "microbatches", size)
    yield from _fewer_experts(case, floor)
    for axis in ("tokens_per_expert", "in_features", "out_features"):
        if axis != "tokens_per_expert" or not case.explicit_splits:
            least = getattr(floor, axis)
            yield from (_changed(case, axis, size) for size in SIZES if least <= size < getattr(case, axis))
    if not case.explicit_splits and case.m_splits != "balanced":
        yield _changed(case, "m_splits", "balanced")


def _fewer_experts(case: Case, floor: Floor) -> Iterator[Step]:
    """Fewer experts of a named pattern; of a list one left out, or one of fewer tokens."""
    if not case.explicit_splits:
        for count in range(floor.num_gemms, case.num_gemms):
            try:
                fewer = msgspec.structs.replace(case, num_gemms=count)
                fewer.splits()
            except ValueError:
                continue
            yield Step(fewer, f"num_gemms {case.num_gemms} -> {count}")
        return
    sizes = [int(size) for size in case.m_splits.split(",")]
    for i in range(len(sizes) if len(sizes) > floor.num_gemms else 0):
        yield _listed(case, sizes[:i] + sizes[i + 1 :])
    for i, size in enumerate(sizes):
        for less in (0, *SIZES):
            if floor.tokens_per_expert <= less < size:
                yield _listed(case, [*sizes[:i], less, *sizes[i + 1 :]])


def _listed(case: Case, sizes: list[int]) -> Step:
    text = ",".join(map(str, sizes))
    return Step(
        msgspec.structs.replace(case, m_splits=text, num_gemms=len(sizes)), f"m_splits {case.m_splits} -> {text}"
    )


def _changed(case: Case, axis: str, value: object) -> Step:
    before = getattr(case, axis)
    told = [int(one) if isinstance(one, bool) else one for one in (before, value)]
    return Step(msgspec.structs.replace(case, **{axis: value}), f"{axis} {told[0]} -> {told[1]}")
