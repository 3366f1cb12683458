"""How is told what a bundle holds, and whether it still does?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gradcheck_cli.records.sealed import Verified
from gradcheck_cli.reporters.issue import Recognised
from gradcheck_cli.reporters.plain_text import one_line
from gradcheck_cli.reporters.standard_output import complain


def step(said: str, console: Console) -> None:
    """What is being done now: it may take minutes."""
    console.print(Text(said, style="dim"), soft_wrap=True)


def known(one: Recognised) -> None:
    """On stderr, that a failure was reported before: a second report of it is of no use."""
    counted = f"{one.cases} case{'' if one.cases == 1 else 's'}"
    complain(f"{counted} of this failure are known as {one}: look there before you report it again")


def written(title: str, files: Mapping[Path, int], console: Console) -> None:
    """The title of the report, and each file with its size."""
    console.print(Text(one_line(title), style="bold"), soft_wrap=True)
    for file, size in files.items():
        console.print(Text(f"wrote {file} ({size:,} bytes)"), soft_wrap=True)


def verified(path: Path, found: Verified, console: Console) -> None:
    """A line for each file that differs, and how many do not."""
    for one in found.differences:
        line = Text.assemble((f"{one.kind}: ", "bold red"), f"{one_line(one.name)}: {one_line(one.why)}")
        console.print(line, soft_wrap=True)
    bad = sum(one.kind != "added" for one in found.differences)
    if found.differences:
        said = f"{path} is not as it was written: {found.files - bad} of {found.files} files are; fetch it again"
    else:
        said = f"{path}: {found.files} of {found.files} files listed in SHA256SUMS are as they were written"
    console.print(Text(said), soft_wrap=True)
