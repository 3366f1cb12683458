"""How is it reproduced? The steps, the script that showed the fault, what it printed, and those of its other kinds."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.reporters import summary
from gradcheck_cli.reporters.marks import code, escaped
from gradcheck_cli.reporters.plain_text import printable

_MOST_OUTPUT = 30
_NO_RUN = "No script was run for this report: it says what the files of the recorded run say."


def name(number: int) -> str:
    """The file of a script in the archive, counted from 1: `script.py`, `script-2.py`."""
    return "script.py" if number == 1 else f"script-{number}.py"


def steps(case: str, shown: Scripted | None, small: Minimised | None, *, counted: bool = False) -> list[str]:
    """What to run, what of it was seen, and which case that is; `counted`: whether numbers of `case` were told."""
    if not shown:
        return [_NO_RUN, "", f"With gradcheck: {code(summary.reproducer(case))}"]
    if not shown.shows:
        case = small.case if small else case
        why = f"No script shows this without gradcheck: {escaped(shown.why_not)}."
        return [why, *_smallest(case, small), "", f"With gradcheck: {code(summary.reproducer(case))}"]
    others = ["Its numbers are not those above, which are of another case."] if counted and shown.case != case else []
    return [
        f"The script below {escaped(shown.in_words)}, each time in a fresh process. It ends with exit code 1.",
        *_smallest(shown.case, small),
        *others,
        "",
        f"With gradcheck: {code(summary.reproducer(shown.case))}",
    ]


def _smallest(case: str, small: Minimised | None) -> list[str]:
    """Whether the case is the smallest that was found, or why not."""
    if small is None or small.asked == small.case:
        return []
    if case == small.case:
        return [f"It is of the smallest case that was found to fail like {code(small.asked)}, which the run had."]
    return [
        f"It is of a case of the run, {code(case)}. A smaller one fails alike, {code(small.case)}, but nothing was "
        f"found to pass beside it."
    ]


def parts(shown: Scripted | None, more: Sequence[Scripted]) -> list[tuple[list[str], int, str]]:
    """Lines, rank and name of each part: the script, its output, then those of the other kinds, folded."""
    if not shown or not shown.shows:
        return []
    told = [
        (_fenced(shown.script.rstrip("\n").splitlines(), "python"), 1, "The script, script.py,"),
        (_printed(shown.output), 2, "Its output"),
        *[(lines, 3, "What passes beside it") for lines in _passing(shown)],
    ]
    seen = [one for one in more if one.shows]
    return told + [(_folded(one, number), 3, f"The script {name(number)}") for number, one in enumerate(seen, 2)]


def _passing(shown: Scripted) -> list[list[str]]:
    """The variant and the other api, as far as they were seen to pass, each with what it prints."""
    beside = [
        ("variant.py", "one axis away", shown.variant, shown.passes, shown.variant_output),
        ("contrast.py", "of another API", shown.contrast, shown.contrast_passes, shown.contrast_output),
    ]
    return [
        [
            f"{code(file)} in the archive is the same {what}, {code(case)}. It passes {passes} of {shown.of}.",
            "",
            *_printed(output),
        ]
        for file, what, case, passes, output in beside
        if case and passes
    ]


def _printed(text: str) -> list[str]:
    output = printable(text).splitlines()
    cut = ["..."] if len(output) > _MOST_OUTPUT else []
    return ["It prints:", "", *_fenced([*cut, *output[-_MOST_OUTPUT:]], "text")]


def _folded(shown: Scripted, number: int) -> list[str]:
    """Another kind of the fault: that it was seen, then the script itself."""
    return [
        f"The same of {code(shown.case)}, {code(name(number))}: {escaped(shown.in_words)}.",
        "",
        f"<details><summary>{name(number)}</summary>",
        "",
        *_fenced(shown.script.rstrip("\n").splitlines(), "python"),
        "",
        *_printed(shown.output),
        "",
        "</details>",
    ]


def _fenced(lines: list[str], language: str) -> list[str]:
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return [f"{fence}{language}", *lines, fence]
