"""Which script was seen to show a failure? Each kind of data in turn, run in fresh processes before it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.reproduce.execute import shows
from gradcheck_cli.reproduce.wanted import MOST_LINES, Data, Unscriptable, kinds

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
Run = Callable[[str, str], Ran]  # of a script, and of words for what it is


class Headers(NamedTuple):
    """The lines above each body: the result is in them, so that they are written last."""

    script: Callable[[Scripted], list[str]]
    passing: Callable[[Scripted, str], list[str]]  # of the variant, or of the contrast, by its case


def scripted(
    failure: Failure, case: Case, passing: Sequence[Case], write: Write, run: Run, headers: Headers
) -> Scripted:
    """A script that failed each time, and beside it what passed each time: a variant, and another api of the provider.

    `passing` are cases to try for either, nearest first.
    """
    why: list[str] = []
    for data in kinds(case, failure):
        try:
            lines = write(case, data)
            tried = _tried(failure, case, lines, data, run)
            if not tried.shows:
                why.append(f"{data}: {tried.in_words}")
                continue
            tried = _beside(tried, case, [one for one in passing if one.api == case.api], data, write, run)
            ran = run(_text(write(control(case), data)), "torch's own layer")
            if ran.fault:  # then it is the lines that are wrong, or this data
                why.append(f"{data}: torch's own layer does not pass either: {ran.fault}")
                continue
            tried = _contrast(tried, [one for one in passing if one.api != case.api], data, write, run)
        except Unscriptable as error:
            return Scripted(case=str(case), script="", why_not=str(error))
        whole = [*headers.script(tried), *lines]
        if len(whole) > MOST_LINES:
            return Scripted(case=str(case), script="", why_not=f"{len(whole)} lines, expected {MOST_LINES} at most")
        return _headed(msgspec.structs.replace(tried, script=_text(whole)), headers)
    return Scripted(case=str(case), script="", why_not="; ".join(why), of=TIMES)


def control(case: Case) -> Case:
    """The same case of a layer that is right: a script that it does not pass shows nothing."""
    return msgspec.structs.replace(case, provider="torch", api="loop", path="auto")


def _headed(tried: Scripted, headers: Headers) -> Scripted:
    """What passes says so itself, as what fails does."""
    texts = {"variant": tried.variant_script, "contrast": tried.contrast_script}
    headed = {
        f"{name}_script": _text(headers.passing(tried, getattr(tried, name))) + text
        for name, text in texts.items()
        if text
    }
    return msgspec.structs.replace(tried, **headed)


def _tried(failure: Failure, case: Case, lines: list[str], data: Data, run: Run) -> Scripted:
    runs = list(_until(lambda ran: not shows(ran, failure), _text(lines), run, f"the script ({data})"))
    fails = sum(shows(one, failure) for one in runs)
    return Scripted(case=str(case), script=_text(lines), fails=fails, of=TIMES, output=runs[-1].output)


def _beside(tried: Scripted, case: Case, passing: Sequence[Case], data: Data, write: Write, run: Run) -> Scripted:
    """The script with the first variant whose own passes each time; alone, where there is none."""
    for variant in passing:
        told, text = difference(case, variant), _text(write(variant, data))
        if output := _passed(text, run, f"the variant with {told}"):
            return msgspec.structs.replace(
                tried,
                variant=str(variant),
                variant_script=text,
                variant_output=output[-1],
                difference=told,
                passes=TIMES,
            )
    return tried


def _contrast(tried: Scripted, passing: Sequence[Case], data: Data, write: Write, run: Run) -> Scripted:
    """The script with the first other api whose own passes each time."""
    for other in passing:
        text = _text(write(other, data))
        if output := _passed(text, run, f"the same of api={other.api}"):
            return msgspec.structs.replace(
                tried, contrast=str(other), contrast_script=text, contrast_output=output[-1], contrast_passes=TIMES
            )
    return tried


def _passed(script: str, run: Run, what: str) -> list[str]:
    """What it printed each time; nothing where it did not pass each time."""
    runs = list(_until(lambda ran: bool(ran.fault), script, run, what))
    return [one.output for one in runs] if not any(one.fault for one in runs) else []


def _until(enough: Callable[[Ran], bool], script: str, run: Run, what: str) -> Iterator[Ran]:
    """As often as asked; one that does not do at once what it must is not run again."""
    for number in range(1, TIMES + 1):
        ran = run(script, f"{what}, run {number} of {TIMES}")
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


def contrasts(case: Case, apis: Sequence[str]) -> Iterator[Case]:
    """The same case of another api of its provider, which takes its path by itself."""
    for api in apis:
        if api != case.api:
            yield msgspec.structs.replace(case, api=api, path="auto")
