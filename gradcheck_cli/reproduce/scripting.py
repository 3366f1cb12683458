"""Which script was seen to show a failure? Each kind of data in turn, run in fresh processes before it is told."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import msgspec

from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.roles import CHAIN, is_chain
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.reproduce.execute import shows
from gradcheck_cli.reproduce.wanted import MOST_LINES, Data, Unscriptable, kinds

TIMES = 3
_PARSING = Lock()  # up to Python 3.12 two threads must not parse at once (python/cpython issue 106905)
# Axis -> what to look at instead, one axis at a time, until a case passes: of what is seldom used its default.
OTHERWISE: dict[str, tuple[object, ...]] = {
    "input_layout": ("contiguous",),
    "grad_output": ("random",),
    "padded_tail": ("none",),
    "m_splits_as": ("auto",),
    "save_original_input": (False,),
    "return_bias": (False,),
    "single_grouped_bias": (False,),
    "frozen_bias": (False,),
    "frozen_input": (False,),
    "frozen_weights": ("none",),
    "tied_weights": (False,),
    "delay_wgrad_compute": (False,),
    "is_first_microbatch": ("unset",),
    "zero_out_wgrad": (False,),
    "overwrite_main_grad": ("none",),
    "grad_added_to_main_grad": ("attached",),
    "main_grad_dtype": ("fp32",),
    "main_grad": ("attached",),
    "single_grouped_weight": (False, True),
    "fuse_wgrad_accumulation": (False, True),
    "path": ("auto", "legacy", "native"),
    "bias": (False, True),
    "dtype": ("bf16", "fp32", "fp16"),
    "microbatches": (1, 2),
    "m_splits": ("balanced",),
    "in_features": (64, 16),
    "out_features": (96, 32),
}

Write = Callable[[Case, Data], list[str]]
Run = Callable[[str, str], Ran]  # of a script, and of words for what it is
CONTROL = "torch's own layer"


class Headers(NamedTuple):
    """The lines above each body: the result is in them, so that they are written last."""

    script: Callable[[Scripted], list[str]]
    passing: Callable[[Scripted, str], list[str]]  # of the variant, or of the contrast, by its case


class Doubtful(Exception):
    """What fails may be the script, and not the layer; the text says why."""


class Trial(NamedTuple):
    """A failure, the data that may show it, and how lines are written and run."""

    failure: Failure
    data: Data
    write: Write
    run: Run


def scripted(
    failure: Failure, case: Case, passing: Sequence[Case], write: Write, run: Run, headers: Headers
) -> Scripted:
    """A script that failed each time, and beside it what passed each time: a variant, and another api of the provider.

    `passing` are cases to try for either, nearest first; gradcheck has passed them. A script is believed where every
    right layer that it is put to passes: torch's own, and these. One that shows the fault of them shows its own.
    """
    why: list[str] = []
    for data in kinds(case, failure):
        found = _believed(Trial(failure, data, write, run), case, passing, headers)
        if isinstance(found, Scripted):
            return found
        why.append(f"{data}: {found}")
    return Scripted(case=str(case), script="", why_not="; ".join(why), of=TIMES)


def _believed(trial: Trial, case: Case, passing: Sequence[Case], headers: Headers) -> Scripted | Doubtful:
    """The script of one kind of data, or why it may be the script that fails."""
    try:
        tried = _tried(trial, case)
        _controlled(trial, case)
        tried = _beside(trial, tried, case, [one for one in passing if one.api == case.api])
        tried = _contrast(trial, tried, [one for one in passing if one.api != case.api])
        return _headed(tried, headers)
    except Doubtful as error:
        return error
    except Unscriptable as error:
        return Scripted(case=str(case), script="", why_not=str(error))


def control(case: Case) -> Case:
    """The same case of a layer that is right: a script that it does not pass shows nothing.

    Without a recipe, which loses nothing of what a script draws.
    """
    unquantised = dict.fromkeys(("recipe", "backward_override"), "none") | {"quantized_model_init": False}
    api = CHAIN if is_chain(case) else "loop"
    return msgspec.structs.replace(case, provider="torch", api=api, path="auto", **unquantised)


def _headed(tried: Scripted, headers: Headers) -> Scripted:
    """What fails says so itself, and what passes as well; Doubtful where that is too long, or not what was run."""
    headed = {"script": _text(headers.script(tried)) + tried.script}
    for name in ("variant", "contrast"):
        if text := getattr(tried, f"{name}_script"):
            headed[f"{name}_script"] = _text(headers.passing(tried, getattr(tried, name))) + text
    if (length := headed["script"].count("\n")) > MOST_LINES:
        raise Doubtful(f"{length} lines, expected {MOST_LINES} at most")
    if changed := [name for name, text in headed.items() if not _below(text, getattr(tried, name))]:
        raise Doubtful(f"the header of {changed[0]} changes what is run")
    return msgspec.structs.replace(tried, **headed)


def _below(text: str, ran: str) -> bool:
    """Whether Python reads a file of this text as what was run, below one docstring."""
    try:
        with _PARSING:
            told, body = ast.parse(text.encode()), ast.parse(ran.encode())
    except (SyntaxError, ValueError):
        return False
    below = [ast.dump(one) for one in told.body[1:]]
    return ast.get_docstring(told) is not None and below == [ast.dump(one) for one in body.body]


def _tried(trial: Trial, case: Case) -> Scripted:
    """The script, where it failed each time; Doubtful says what became of it otherwise."""
    failure, text = trial.failure, _text(trial.write(case, trial.data))
    runs = list(_until(lambda ran: not shows(ran, failure), text, trial.run, f"the script ({trial.data})"))
    tried = Scripted(
        case=str(case),
        script=text,
        fails=sum(shows(one, failure) for one in runs),
        of=TIMES,
        output=runs[-1].output,
    )
    if not tried.shows:
        raise Doubtful(tried.in_words)
    return tried


def _controlled(trial: Trial, case: Case) -> None:
    """Doubtful, where a right layer does not pass: then it is the lines that are wrong, or this data."""
    ran = trial.run(_text(trial.write(control(case), trial.data)), CONTROL)
    if ran.exit_status == "time limit":
        raise Doubtful(f"{CONTROL} {ran.fault} either, so that the limit says nothing: try a longer --timeout")
    if ran.fault:
        raise Doubtful(f"{CONTROL} does not pass either: {ran.fault}")


def _beside(trial: Trial, tried: Scripted, case: Case, passing: Sequence[Case]) -> Scripted:
    """The script with the first variant whose own passes each time; alone, where there is none."""
    for variant, text in _written(trial, passing):
        told = difference(case, variant)
        if output := _passed(trial, text, f"the variant with {told}"):
            return msgspec.structs.replace(
                tried,
                variant=str(variant),
                variant_script=text,
                variant_output=output[-1],
                difference=told,
                passes=TIMES,
            )
    return tried


def _contrast(trial: Trial, tried: Scripted, passing: Sequence[Case]) -> Scripted:
    """The script with the first other api whose own passes each time."""
    for other, text in _written(trial, passing):
        if output := _passed(trial, text, f"the same of api={other.api}"):
            return msgspec.structs.replace(
                tried, contrast=str(other), contrast_script=text, contrast_output=output[-1], contrast_passes=TIMES
            )
    return tried


def _written(trial: Trial, passing: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """Each case and its script; one of which nobody asks what fails here has none, and shows nothing."""
    for one in passing:
        try:
            lines = trial.write(one, trial.data)
        except Unscriptable:
            continue
        yield one, _text(lines)


def _passed(trial: Trial, script: str, what: str) -> list[str]:
    """What it printed each time; nothing where it did not pass each time; Doubtful where it shows the same fault."""
    runs = list(_until(lambda ran: bool(ran.fault), script, trial.run, what))
    if shows(runs[-1], trial.failure):
        raise Doubtful(f"{what} fails alike, which gradcheck passed: {runs[-1].fault}")
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
