"""How are the smallest case and its script told?"""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.minimised import Attempt, Minimised
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.standard_output import complain
from gradcheck_cli.reporters.summary import environment_line


def attempt(one: Attempt, console: Console) -> None:
    """One line for each simpler case that was run."""
    mark = Text("kept    ", style="green") if one.kept else Text("rejected", style="dim")
    told = f" {one.change}: {one.outcome.value}{f' ({one.diagnosis})' if one.diagnosis else ''}"
    console.print(Text.assemble(mark, told), soft_wrap=True)


def minimised(found: Minimised, console: Console) -> None:
    """The end of it: the smallest case on the last line."""
    kept = sum(one.kept for one in found.trail)
    # Of two wrong values that have no name nothing tells whether they are one fault.
    named = f" ({found.diagnosis})" if found.diagnosis else ", alike by outcome and gradient alone"
    said = f"{found.role} {found.outcome.value}{named}: {len(found.trail)} runs, {kept} kept, {found.seconds:.1f} s"
    console.print(Text(f"{said}; {found.stopped}" if found.stopped else said), soft_wrap=True)
    console.print(Text(found.case, style="bold"), soft_wrap=True)


def as_json(found: Minimised) -> str:
    """The trail as a file."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def step(said: str) -> None:
    """What is being done now, which may take minutes: on stderr, since a script goes to standard output."""
    complain(said)


def header(result: Scripted, failure: Failure, environment: Environment, gradcheck: str) -> list[str]:
    """The first lines of a script: what it shows, what came of running it, and where."""
    return _docstring(f"{failure}: {result.in_words}.", result.case, result.script, environment, gradcheck)


def passing_header(
    result: Scripted, case: str, failure: Failure, environment: Environment, gradcheck: str
) -> list[str]:
    """The first lines of what passes beside it: what is otherwise in it, and what came of running it."""
    variant = case == result.variant
    told = f"with {result.difference}" if variant else f"of {case.split(':')[1]}"
    passes, text = (
        (result.passes, result.variant_script) if variant else (result.contrast_passes, result.contrast_script)
    )
    said = f"No fault {told}: passes {passes} of {result.of}, where the script beside it shows {failure}."
    return _docstring(said, case, text, environment, gradcheck)


def _docstring(said: str, case: str, text: str, environment: Environment, gradcheck: str) -> list[str]:
    """Foreign words are in it, as of an exception or a device: each in one line, and none ends it."""
    needs = ["It needs gradcheck as well: the layer is built by its plug-in, from a case."] if _imports(text) else []
    last = f"Written and run by gradcheck {gradcheck}: {environment_line(environment)}."
    lines = [one_line(line).replace("\\", r"\\").replace('"""', r"\"\"\"") for line in (said, case, *needs, last)]
    lines[0], lines[-1] = f'"""{lines[0]}', f'{lines[-1]}"""'
    return lines


def _imports(text: str) -> bool:
    return any(line.startswith("from gradcheck_cli") for line in text.splitlines())


def script(shown: Scripted, console: Console, file: Path | None) -> None:
    """The script itself, for a pipe; or where it was written."""
    if file is None:
        console.out(shown.script, end="", highlight=False)
    else:
        console.print(Text(f"wrote {file}: {shown.in_words}"), soft_wrap=True)
