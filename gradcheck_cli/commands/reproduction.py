"""What can be typed to make a bug report? Each command parses, calls one function, and returns its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradcheck_cli.commands.options import (
    Bare,
    CaseArgument,
    DeviceOption,
    OneTeOption,
    RunArgument,
    TeOption,
    TimeoutOption,
    option,
)

app = typer.Typer()

# A file, where --output of a run is a folder: of no variable.
TrailOption = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="A file for the trail, as JSON.")]
ScriptOption = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="A file for the script.")]
RunsOption = Annotated[int, option("--max-runs", "Cases to run at most.", min=1, metavar="N")]
FloorOption = Annotated[
    str,
    option("--floor", "none, or report: at least 2 experts of 4 tokens, and 16 x 32 features.", metavar="NAME"),
]
# One case, and a folder that is not a run's: of no variable either.
OneCaseOption = Annotated[
    str, typer.Option("--case", metavar="ID", help="The red case; default: one of the gravest rule.")
]
BundleOption = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Where both files go; default RUN/bundle.")
]
NoRunOption = Annotated[bool, typer.Option("--no-run", help="From the files alone: no case and no script is run.")]
BundleArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A bundle.zip, or the folder it was unpacked to.")]
BisectedOption = Annotated[str, typer.Option("--case", metavar="ID", help="The case that is run under the versions.")]
AllOption = Annotated[bool, typer.Option("--all", help="Run every version. A fault may have come and gone.")]
BisectFormatOption = Annotated[str, typer.Option("--format", metavar="NAME", help="text or json.")]
SecondsOption = Annotated[float, option("--max-seconds", "Seconds to spend at most.", min=0.1, metavar="SECONDS")]


@app.command(cls=Bare)
def minimise(
    case: CaseArgument,
    device: DeviceOption = "",
    timeout: TimeoutOption = 60.0,
    runs: RunsOption = 300,
    seconds: SecondsOption = 600.0,
    floor: FloorOption = "none",
    te: OneTeOption = [],  # noqa: B006
    output: TrailOption = None,
) -> None:
    """The smallest case that fails alike. Every change that keeps the failure is kept."""
    from gradcheck_cli import reproducing, unpacked
    from gradcheck_cli.reproduce.minimise import Budget

    budget = Budget(runs, seconds, reproducing.floor_of(floor))
    where = reproducing.Where(device, timeout, unpacked.one(te))
    raise typer.Exit(reproducing.minimise_case(case, where, budget, output))


@app.command(cls=Bare)
def bisect(
    case: BisectedOption,
    te: TeOption = [],  # noqa: B006
    device: DeviceOption = "",
    timeout: TimeoutOption = 60.0,
    everything: AllOption = False,  # noqa: FBT002
    form: BisectFormatOption = "text",
) -> None:
    """Between which versions a case broke, or was mended. As few of them are run as that takes.

    The ends first; then the middle between two results that differ. Where both ends are the same, the middles of what
    lies between them until something differs, or all were run. Ends with 0 where a change was found or all are right,
    1 where all are wrong in the same way, 5 where all refuse the case.
    """
    from gradcheck_cli import bisecting

    raise typer.Exit(bisecting.bisect(case, te, bisecting.Options(device, timeout, everything), form))


@app.command(cls=Bare)
def script(
    case: CaseArgument,
    device: DeviceOption = "",
    timeout: TimeoutOption = 60.0,
    te: OneTeOption = [],  # noqa: B006
    output: ScriptOption = None,
) -> None:
    """A standalone script that shows the failure of a case. It was run in fresh processes before it is told."""
    from gradcheck_cli import reproducing, unpacked

    where = reproducing.Where(device, timeout, unpacked.one(te))
    raise typer.Exit(reproducing.script_case(case, where, output))


@app.command(cls=Bare)
def bundle(
    folder: RunArgument,
    case: OneCaseOption = "",
    device: DeviceOption = "",
    timeout: TimeoutOption = 60.0,
    no_run: NoRunOption = False,  # noqa: FBT002
    te: OneTeOption = [],  # noqa: B006
    output: BundleOption = None,
) -> None:
    """A bug report and an archive to attach. Names, addresses and tokens are taken out: read it all the same."""
    from gradcheck_cli import bundling, unpacked

    options = bundling.Options(device, timeout, no_run, output, unpacked.one(te))
    raise typer.Exit(bundling.bundle(folder, case, options))


@app.command(cls=Bare)
def verify(file: BundleArgument) -> None:
    """Whether a bundle is as it was written. Compares every hash, and unpacks nothing."""
    from gradcheck_cli import bundling

    raise typer.Exit(bundling.verify(file))
