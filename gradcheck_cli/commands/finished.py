"""What can be typed about runs that are over? Each command parses, calls one function, and returns its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradcheck_cli.commands.options import Bare, FormatOption, KnownOption, LambdaOption, RunArgument

app = typer.Typer()

OldArgument = Annotated[Path, typer.Argument(metavar="OLD", help="The folder of the run to compare with.")]
NewArgument = Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the run that came later.")]
# Of no variable: GRADCHECK_OUTPUT names the folder of a run.
ReportOutputOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Where files go; default RUN. None is written over."),
]
# Of no variable: GRADCHECK_FORMAT names the files of a run.
ExplainFormatOption = Annotated[str, typer.Option("--format", metavar="NAME", help="text, markdown or json.")]
DiffFormatOption = Annotated[str, typer.Option("--format", metavar="NAME", help="table, markdown or json.")]
ProviderMapOption = Annotated[
    list[str],
    typer.Option(
        "--provider-map",
        metavar="OLD=NEW",
        help="Compare the cases of one layer with those of another: te:op=torch:grouped_mm; repeatable.",
    ),
]


@app.command(cls=Bare)
def report(
    folder: RunArgument,
    formats: FormatOption = ["table"],  # noqa: B006
    output: ReportOutputOption = None,
) -> None:
    """Render a finished run again, in any format. Ends with 0, whatever the run's own exit code was."""
    from gradcheck_cli import pipeline

    pipeline.render_again(folder, formats, output)


@app.command(cls=Bare)
def judge(
    folder: RunArgument,
    lambda_: LambdaOption = None,
    known: KnownOption = "",
    formats: FormatOption = ["table"],  # noqa: B006
) -> None:
    """Judge what a run saw again, without a device. Ends as a run would, and writes nothing."""
    from gradcheck_cli import rejudging

    raise typer.Exit(rejudging.judge(folder, lambda_, known, formats))


@app.command(cls=Bare)
def explain(folder: RunArgument, form: ExplainFormatOption = "text") -> None:
    """The shortest rule behind each group of failures. Also the nearest case that passed."""
    from gradcheck_cli import explaining

    explaining.explain(folder, form)


@app.command(cls=Bare)
def diff(
    old: OldArgument,
    new: NewArgument,
    form: DiffFormatOption = "table",
    provider_map: ProviderMapOption = [],  # noqa: B006
) -> None:
    """What changed between two runs, case by case. Ends with 1 where what was right is not any more.

    So it does where a case that was right is not in NEW, unless NEW was narrowed with -k, --case, --shard or
    --last-failed. An error after output rounding is told from four times what it was, and 0.2 of its bound; a case is
    slower from twice its time, and 2 s more.
    """
    from gradcheck_cli import comparing

    raise typer.Exit(comparing.diff(old, new, form, provider_map))
