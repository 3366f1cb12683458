"""What can be typed? Each command parses, calls one pipeline function, and returns its exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gradcheck_cli import __version__
from gradcheck_cli.errors import GradcheckError, HarnessError
from gradcheck_cli.reporters.lines import for_terminal

PREFIX = "GRADCHECK_"

app = typer.Typer(
    name="gradcheck",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would render the help, at twice the time of everything else together
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Did every gradient of a grouped linear layer arrive where it must, and is it right?",
)


def option(flag: str, text: str, **more: Any) -> Any:
    """An option that the variable GRADCHECK_<NAME> sets too."""
    variable = PREFIX + flag.lstrip("-").replace("-", "_").upper()
    return typer.Option(flag, envvar=variable, help=text, **more)


class Bare(TyperCommand):
    """A command whose usage names its argument as README does: CASE, where typer says {CASE}."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


MatrixOption = Annotated[str, option("--matrix", "A name in cases/, or a TOML file.", metavar="NAME")]
ProviderOption = Annotated[
    list[str],
    option(
        "--provider",
        "Who builds the layer; repeatable. auto: te where it is installed and a CUDA driver answers, else torch.",
        metavar="NAME",
    ),
]
ExpressionOption = Annotated[
    str, option("-k", "Only cases for which this holds: 'api=module and not dtype=fp32'.", metavar="EXPRESSION")
]
CaseOption = Annotated[list[str], option("--case", "This case; repeatable. Replaces --matrix.", metavar="ID")]
ShardOption = Annotated[str, option("--shard", "The I-th of N disjoint parts.", metavar="I/N")]
SeedOption = Annotated[int, option("--seed", "Of the data; part of every id unless 0.", min=0, metavar="N")]
DeviceOption = Annotated[
    str, option("--device", "cpu, cuda:0, ...; default: the first CUDA device, else cpu.", metavar="NAME")
]
FORMATS = "table, csv, json, junit, markdown, svg; repeatable."
FormatOption = Annotated[list[str], option("--format", FORMATS, metavar="NAME")]
LastFailedOption = Annotated[
    Path | None, option("--last-failed", "The cases of that run that were not green. Replaces --matrix.", metavar="RUN")
]
MaxfailOption = Annotated[int, option("--maxfail", "Stop after N cases with findings; 0: never.", min=0, metavar="N")]
TimeoutOption = Annotated[
    float, option("--timeout", "Of one case, beside gradcheck's own work on it.", min=0.1, metavar="SECONDS")
]
OutputOption = Annotated[
    Path | None, option("--output", "The run's folder; default reports/<time>-<provider>.", metavar="DIR")
]
MinExecutedOption = Annotated[
    float, option("--min-executed", "Below this share executed, exit 5.", min=0.0, max=1.0, metavar="SHARE")
]
MutantsOption = Annotated[
    str,
    option("--mutants", "Faults put into what was seen, which must be noticed: fast, all or none.", metavar="WHICH"),
]
QuietOption = Annotated[bool, option("--quiet", "Only the table and the summary.")]
ExcludedOption = Annotated[bool, typer.Option("--excluded", help="Also the cases left out, and why.")]
VersionOption = Annotated[bool, typer.Option("--version", help="Print the version and exit.")]
# Of no variable: a threshold is typed, or it is the one in `judge/bounds.py`.
LambdaOption = Annotated[
    float | None,
    typer.Option("--lambda", metavar="L", help="Allow errors on random data this lambda, less than the run did."),
]
CaseArgument = Annotated[str, typer.Argument(metavar="CASE", help="An id, as `gradcheck list` prints it.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]


@app.callback(invoke_without_command=True)
def root(version: VersionOption = False) -> None:  # noqa: FBT002
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
    last_failed: LastFailedOption = None,
    maxfail: MaxfailOption = 0,
    shard: ShardOption = "",
    device: DeviceOption = "",
    timeout: TimeoutOption = 60.0,
    seed: SeedOption = 0,
    output: OutputOption = None,
    formats: FormatOption = ["table"],  # noqa: B006
    min_executed: MinExecutedOption = 0.5,
    mutants: MutantsOption = "fast",
    quiet: QuietOption = False,  # noqa: FBT002
) -> None:
    """Enumerate, execute, judge, report."""
    from gradcheck_cli import pipeline, selection

    asked = selection.Asked(matrix=matrix, provider=provider, expression=expression, case=case, shard=shard, seed=seed)
    options = pipeline.RunOptions(
        device=device,
        last_failed=last_failed,
        maxfail=maxfail,
        timeout=timeout,
        output=output,
        formats=formats,
        min_executed=min_executed,
        mutants=mutants,
        quiet=quiet,
    )
    raise typer.Exit(pipeline.run(asked, options, pipeline.Typed(command=sys.argv[1:], variables=own_variables())))


@app.command("list")
def list_cases(
    matrix: MatrixOption = "core",
    provider: ProviderOption = ["auto"],  # noqa: B006
    expression: ExpressionOption = "",
    case: CaseOption = [],  # noqa: B006
    shard: ShardOption = "",
    seed: SeedOption = 0,
    excluded: ExcludedOption = False,  # noqa: FBT002
) -> None:
    """The cases a run would execute, one id a line."""
    from gradcheck_cli import listing, selection

    asked = selection.Asked(matrix=matrix, provider=provider, expression=expression, case=case, shard=shard, seed=seed)
    typer.echo("\n".join(listing.cases(asked, excluded=excluded)))


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
def doctor(device: DeviceOption = "") -> None:
    """What is installed here, and which paths are closed. Also which devices there are, and what opens a path."""
    from gradcheck_cli import examination

    typer.echo(for_terminal(examination.examine(device)))


@app.command()
def selftest(
    matrix: MatrixOption = "selftest",
    provider: Annotated[str, option("--provider", "The layer that is right.", metavar="NAME")] = "torch",
    device: DeviceOption = "",
) -> None:
    """Every fault against the oracle: what is seen, on this machine. Also the smallest error that is."""
    from gradcheck_cli import selftest as own

    raise typer.Exit(own.selftest(matrix, provider, device))


@app.command(cls=Bare)
def report(folder: RunArgument, formats: FormatOption = ["table"]) -> None:  # noqa: B006
    """Render a finished run again, in any format. Ends with 0, whatever the run's own exit code was."""
    from gradcheck_cli import pipeline

    pipeline.render_again(folder, formats)


@app.command(cls=Bare)
def judge(folder: RunArgument, lambda_: LambdaOption = None) -> None:
    """Judge what a run saw again, without a device. Ends as a run would, and writes nothing."""
    from gradcheck_cli import rejudging

    raise typer.Exit(rejudging.judge(folder, lambda_))


def own_variables() -> dict[str, str]:
    """The GRADCHECK_* variables: all of them, so that one with a wrong name shows."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}


def _end_in_good_order() -> None:
    """Let SIGTERM and SIGHUP, with which a job is cancelled, end a run as Ctrl-C does: reported, exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Run the command line; a GradcheckError becomes its message on stderr and its exit code."""
    if sys.stdout is None:  # closed by the caller: `gradcheck ... >&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  it stands in for the real one to the end
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to end a run
    _end_in_good_order()
    try:
        app(prog_name="gradcheck")
    except GradcheckError as error:
        typer.echo(f"gradcheck: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Files answer for themselves; what is left is standard output, and a machine out of processes or files.
        typer.echo(f"gradcheck: expected to go on, the system said: {error}", err=True)
        sys.exit(HarnessError.exit_code)
    except Exception:  # noqa: BLE001  whatever it is, exit code 1 would call it a finding
        traceback.print_exc()
        typer.echo("gradcheck: gradcheck itself failed; please report it with the lines above", err=True)
        sys.exit(HarnessError.exit_code)
