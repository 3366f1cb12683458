"""What can be typed? Each command parses, calls one pipeline function, and returns its exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gradcheck_cli import __version__
from gradcheck_cli.errors import GradcheckError

app = typer.Typer(
    name="gradcheck",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich renders the help, at twice the time of everything else together
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Did every gradient of a grouped linear layer arrive where it must, and is it right?",
)

PREFIX = "GRADCHECK_"

MatrixOption = Annotated[
    str, typer.Option("--matrix", envvar=f"{PREFIX}MATRIX", help="A name in cases/, or a TOML file.")
]
ProviderOption = Annotated[
    list[str],
    typer.Option(
        "--provider",
        envvar=f"{PREFIX}PROVIDER",
        help="Who builds the layer; repeatable. auto: te where it is installed and a CUDA driver answers, else torch.",
    ),
]
ExpressionOption = Annotated[
    str,
    typer.Option(
        "-k",
        envvar=f"{PREFIX}K",
        metavar="EXPRESSION",
        help="Only cases for which this holds: 'api=module and not dtype=fp32'.",
    ),
]
CaseOption = Annotated[
    list[str],
    typer.Option("--case", envvar=f"{PREFIX}CASE", metavar="ID", help="This case; repeatable. Replaces --matrix."),
]
ShardOption = Annotated[
    str, typer.Option("--shard", envvar=f"{PREFIX}SHARD", metavar="I/N", help="The I-th of N disjoint parts.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", envvar=f"{PREFIX}SEED", min=0, help="Of the data; part of every id unless 0.")
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", envvar=f"{PREFIX}DEVICE", help="cpu, cuda:0, ...; default: the first CUDA device, else cpu."
    ),
]
FormatOption = Annotated[
    list[str],
    typer.Option("--format", envvar=f"{PREFIX}FORMAT", help="table, csv, json, junit, markdown; repeatable."),
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002
) -> None:
    """Not torch.autograd.gradcheck: no finite differences, but delivery and exactness of gradients, case by case."""
    if version:
        typer.echo(f"gradcheck {__version__}")
        raise typer.Exit


@app.command()
def run(
    matrix: MatrixOption = "core",
    provider: ProviderOption = ["auto"],  # noqa: B006
    expression: ExpressionOption = "",
    case: CaseOption = [],  # noqa: B006
    last_failed: Annotated[
        Path | None,
        typer.Option(
            "--last-failed", envvar=f"{PREFIX}LAST_FAILED", metavar="RUN", help="Only cases not green in that run."
        ),
    ] = None,
    maxfail: Annotated[
        int,
        typer.Option("--maxfail", envvar=f"{PREFIX}MAXFAIL", min=0, help="Stop after this many findings; 0: never."),
    ] = 0,
    shard: ShardOption = "",
    device: DeviceOption = "",
    timeout: Annotated[
        float, typer.Option("--timeout", envvar=f"{PREFIX}TIMEOUT", min=0.1, help="Seconds that one case may take.")
    ] = 60.0,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            envvar=f"{PREFIX}OUTPUT",
            metavar="DIR",
            help="The run's folder; default reports/<time>-<provider>.",
        ),
    ] = None,
    formats: FormatOption = ["table"],  # noqa: B006
    min_executed: Annotated[
        float,
        typer.Option(
            "--min-executed",
            envvar=f"{PREFIX}MIN_EXECUTED",
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Below this share executed, exit 5.",
        ),
    ] = 0.5,
    quiet: Annotated[
        bool, typer.Option("--quiet", envvar=f"{PREFIX}QUIET", help="Only the table and the summary.")
    ] = False,  # noqa: FBT002
) -> None:
    """Enumerate, execute, judge, report."""
    from gradcheck_cli import pipeline, selection

    asked = selection.Asked(
        matrix=matrix,
        provider=tuple(provider),
        expression=expression,
        case=tuple(case),
        shard=shard,
        device=device,
        seed=seed,
    )
    options = pipeline.RunOptions(
        asked=asked,
        last_failed=last_failed,
        maxfail=maxfail,
        timeout=timeout,
        output=output,
        formats=tuple(formats),
        min_executed=min_executed,
        quiet=quiet,
        command=("gradcheck", *sys.argv[1:]),
        options=own_variables(),
    )
    raise typer.Exit(pipeline.run(options))


@app.command("list")
def list_cases(
    matrix: MatrixOption = "core",
    provider: ProviderOption = ["auto"],  # noqa: B006
    expression: ExpressionOption = "",
    case: CaseOption = [],  # noqa: B006
    shard: ShardOption = "",
    seed: SeedOption = 0,
    excluded: Annotated[bool, typer.Option("--excluded", help="Also the cases left out, and why.")] = False,  # noqa: FBT002
) -> None:
    """The cases a run would execute, one id a line."""
    from gradcheck_cli import listing, selection

    asked = selection.Asked(
        matrix=matrix, provider=tuple(provider), expression=expression, case=tuple(case), shard=shard, seed=seed
    )
    typer.echo("\n".join(listing.cases(asked, excluded=excluded)))


@app.command()
def show(case: Annotated[str, typer.Argument(metavar="CASE", help="An id, as `gradcheck list` prints it.")]) -> None:
    """The delivery contract of one case in words: which gradient must arrive where, holding what."""
    from gradcheck_cli import listing

    typer.echo("\n".join(listing.contract(case)))


@app.command()
def providers() -> None:
    """What can be put on trial, and what can be told: candidates, executors and reporters."""
    from gradcheck_cli import listing

    typer.echo("\n".join(listing.plugins_in_words()))


@app.command()
def doctor(device: DeviceOption = "") -> None:
    """What is installed, which devices there are, and which native paths are open, or what would open them."""
    from gradcheck_cli import examination

    typer.echo("\n".join(examination.examine(device)))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    formats: FormatOption = ["table"],  # noqa: B006
) -> None:
    """Render a finished run again, in any format."""
    from gradcheck_cli import pipeline

    pipeline.render_again(folder, tuple(formats))


def own_variables() -> dict[str, str]:
    """The GRADCHECK_* variables that set options of this run."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}


def main() -> None:
    """Run the command line; a GradcheckError becomes its message on stderr and its exit code."""
    try:
        app()
    except GradcheckError as error:
        typer.echo(f"gradcheck: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("gradcheck: interrupted", err=True)
        sys.exit(130)
