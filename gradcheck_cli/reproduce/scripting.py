"""Which script was seen to show a failure? Each kind of data in turn, run in fresh processes before it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.reproduce.execute import shows
from gradcheck_cli.reproduce.script import KINDS, MOST_LINES, Data, Unscriptable

TIMES = 3
# Axis -> what to look at instead, one axis at a time, until a case passes.
OTHERWISE: dict[str, tuple[object, ...]] = {
    "single_grouped_weight": (False, True),
    "fuse_wgrad_accumulation": (False, True),
    "path": ("auto", "legacy", "native"),
    "bias": (False, True),
    "dtype": ("bf16", "fp32", "fp16"),
    "grad_output": ("random",),
    "microbatches": (1, 2),
    "m_splits": ("balanced",),
    "in_features": (64, 16),
    "out_features": (96, 32),
}

Write = Callable[[Case, Data], list[str]]
Run = Callable[[str], Ran]


def scripted(
    failure: Failure,
    case: Case,
    passing: Sequence[Case],
    write: Write,
    run: Run,
    head: Callable[[Scripted], list[str]],
) -> Scripted:
    """A script that failed each time, and beside it the first passing variant of which the script passed each time.

    `head` writes the lines above the body: the result is in them, so that they are written last.
    """
    why: list[str] = []
    for data in KINDS:
        try:
            lines = write(case, data)
            tried = _tried(failure, case, lines, run)
            if not tried.shows:
                why.append(f"{data}: {tried.in_words}")
                continue
            tried = _beside(tried, case, passing, data, write, run)
            ran = run(_text(write(control(case), data)))
            if ran.fault:  # then it is the lines that are wrong, or this data
                why.append(f"{data}: torch's own layer does not pass either: {ran.fault}")
                continue
        except Unscriptable as error:
            return Scripted(case=str(case), script="", why_not=str(error))
        whole = [*head(tried), *lines]
        if len(whole) > MOST_LINES:
            return Scripted(case=str(case), script="", why_not=f"{len(whole)} lines, expected {MOST_LINES} at most")
        return msgspec.structs.replace(tried, script=_text(whole))
    return Scripted(case=str(case), script="", why_not="; ".join(why), of=TIMES)


def control(case: Case) -> Case:
    """The same case of a layer that is right: a script that it does not pass shows nothing."""
    return msgspec.structs.replace(case, provider="torch", api="loop", path="auto")


def _tried(failure: Failure, case: Case, lines: list[str], run: Run) -> Scripted:
    runs = list(_until(lambda ran: not shows(ran, failure), _text(lines), run))
    fails = sum(shows(one, failure) for one in runs)
    return Scripted(case=str(case), script=_text(lines), fails=fails, of=TIMES, output=runs[-1].output)


def _beside(tried: Scripted, case: Case, passing: Sequence[Case], data: Data, write: Write, run: Run) -> Scripted:
    """The script with the first variant whose own passes each time; alone, where there is none."""
    for variant in passing:
        text = _text(write(variant, data))
        passes = sum(not one.fault for one in _until(lambda ran: bool(ran.fault), text, run))
        if passes == TIMES:
            told = difference(case, variant)
            return msgspec.structs.replace(
                tried, variant=str(variant), variant_script=text, difference=told, passes=passes
            )
    return tried


def _until(enough: Callable[[Ran], bool], script: str, run: Run) -> Iterator[Ran]:
    """As often as asked; one that does not do at once what it must is not run again."""
    for _ in range(TIMES):
        ran = run(script)
        yield ran
        if enough(ran):
            return


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def difference(case: Case, variant: Case) -> str:
    """What the variant has otherwise: `single_grouped_weight=0`."""
    axes, others = case.axes(), variant.axes()
    return ", ".join(f"{name}={others[name]}" for name in AXES if axes[name] != others[name])


def variants(case: Case) -> Iterator[Case]:
    """Cases one axis away, first those that lead away from what is seldom used."""
    for axis, values in OTHERWISE.items():
        for value in values:
            if getattr(case, axis) != value:
                yield msgspec.structs.replace(case, **{axis: value})
