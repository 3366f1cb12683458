"""What can be typed about cases? Each command parses, calls one function, and returns its exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gradcheck_cli.commands.options import (
    AddressOption,
    Bare,
    CaseArgument,
    CaseOption,
    DeviceOption,
    DeviceTypeOption,
    ExcludedOption,
    ExecutorOption,
    ExpressionOption,
    FormatOption,
    KnownOption,
    LastFailedOption,
    MatrixOption,
    MaxfailOption,
    MinExecutedOption,
    MutantsOption,
    OutputOption,
    ProviderOption,
    QuietOption,
    ResumeOption,
    RunDeviceOption,
    SeedOption,
    ShardOption,
    StressOption,
    TeOption,
    TimeoutOption,
    WorkersOption,
    as_text,
    option,
    own_variables,
    typed_options,
)
from gradcheck_cli.reporters.lines import for_terminal

app = typer.Typer()


@app.command()
def run(
    context: typer.Context,
    matrix: MatrixOption = "core",
    provider: ProviderOption = ["auto"],  # noqa: B006
    expression: ExpressionOption = "",
    case: CaseOption = [],  # noqa: B006
    last_failed: LastFailedOption = None,
    maxfail: MaxfailOption = 0,
    shard: ShardOption = "",
    te: TeOption = [],  # noqa: B006
    device: RunDeviceOption = "",
    workers: WorkersOption = 0,
    executor: ExecutorOption = "local",
    address: AddressOption = "",
    device_type: DeviceTypeOption = "",
    timeout: TimeoutOption = 60.0,
    seed: SeedOption = 0,
    output: OutputOption = None,
    resume: ResumeOption = False,  # noqa: FBT002
    formats: FormatOption = ["table"],  # noqa: B006
    min_executed: MinExecutedOption = 0.5,
    mutants: MutantsOption = "fast",
    known: KnownOption = "",
    stress: StressOption = False,  # noqa: FBT002
    quiet: QuietOption = False,  # noqa: FBT002
) -> None:
    """Enumerate, execute, judge, report. With several --te: once for each, and a table of them side by side."""
    from gradcheck_cli import pipeline, selection, side_by_side

    options = pipeline.RunOptions(
        device=device,
        workers=workers,
        executor=executor,
        address=address,
        device_type=device_type,
        resume=typed_options(context) if resume else None,
        last_failed=last_failed,
        maxfail=maxfail,
        timeout=timeout,
        output=output,
        formats=formats,
        min_executed=min_executed,
        mutants=mutants,
        known=known,
        stress=stress,
        quiet=quiet,
    )
    typed = pipeline.Typed(command=[*map(as_text, sys.argv[1:])], variables=own_variables())
    asked = selection.Asked(matrix=matrix, provider=provider, expression=expression, case=case, shard=shard, seed=seed)
    raise typer.Exit(side_by_side.run(asked, options, typed, te))


@app.command("list")
def list_cases(
    matrix: MatrixOption = "core",
    provider: ProviderOption = ["auto"],  # noqa: B006
    expression: ExpressionOption = "",
    case: CaseOption = [],  # noqa: B006
    shard: ShardOption = "",
    te: TeOption = [],  # noqa: B006
    seed: SeedOption = 0,
    excluded: ExcludedOption = False,  # noqa: FBT002
) -> None:
    """The cases a run would execute, one id a line."""
    from gradcheck_cli import listing, selection

    asked = selection.Asked(matrix=matrix, provider=provider, expression=expression, case=case, shard=shard, seed=seed)
    sys.stdout.writelines(f"{line}\n" for line in listing.cases(asked, te, excluded=excluded))


@app.command(cls=Bare)
def show(case: CaseArgument) -> None:
    """The delivery contract of one case, in words. Which gradient must arrive where, holding what."""
    from gradcheck_cli import listing

    typer.echo(for_terminal(listing.contract(case)))


@app.command()
def providers() -> None:
    """What can be put on trial, and how it is told. The candidates, executors, reporters and matrices."""
    from gradcheck_cli import listing

    typer.echo(for_terminal(listing.plugins_in_words()))


@app.command()
def doctor(device: DeviceOption = "", te: TeOption = []) -> None:  # noqa: B006
    """What is installed here, and which paths are closed. Also which devices there are, and what opens a path."""
    from gradcheck_cli import examination

    typer.echo(for_terminal(examination.examine(device, te)))


@app.command()
def selftest(
    matrix: MatrixOption = "selftest",
    provider: Annotated[str, option("--provider", "The layer that is right.", metavar="NAME")] = "torch",
    device: DeviceOption = "",
) -> None:
    """Every fault against the oracle: what is seen, on this machine. Also the smallest error that is."""
    from gradcheck_cli import selftest as own

    raise typer.Exit(own.selftest(matrix, provider, device))
