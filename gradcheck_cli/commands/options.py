"""Which options do several commands have, and under which names and variables?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

PREFIX = "GRADCHECK_"


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
        "Who builds the layer; repeatable. auto: te where it is installed and CUDA answers, or with --te; else torch.",
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
RunDeviceOption = Annotated[
    str,
    option("--device", "cpu, cuda:0, ...; all: each CUDA device; default: the first, else cpu.", metavar="NAME"),
]
WorkersOption = Annotated[
    int, option("--workers", "So many at once, sharing the devices; 0: one for each.", min=0, metavar="N")
]
ExecutorOption = Annotated[
    str,
    option("--executor", "local: on this machine; ray: on the GPUs or processors of a Ray cluster.", metavar="NAME"),
]
AddressOption = Annotated[
    str,
    option("--address", "Of a Ray cluster; default: as Ray finds one, else one on this machine.", metavar="HOST:PORT"),
]
DeviceTypeOption = Annotated[
    str, option("--device-type", "Only such GPUs of a Ray cluster, in turn: H100,B200.", metavar="NAMES")
]
ResumeOption = Annotated[bool, option("--resume", "Run what is left of the run in --output, and nothing else.")]
FORMATS = "table, csv, json, junit, markdown, svg, github; repeatable."
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
KnownOption = Annotated[
    str,
    option("--known", "Failures that are known, and green: a TOML file, or known, which is shipped.", metavar="FILE"),
]
TeOption = Annotated[
    list[Path],
    option("--te", "A folder with an unpacked Transformer Engine, for the workers; repeatable.", metavar="PATH"),
]
OneTeOption = Annotated[
    list[Path],
    option("--te", "A folder with an unpacked Transformer Engine, not the installed one.", metavar="PATH"),
]
StressOption = Annotated[
    bool, option("--stress", "Beside each case others compute, copy and allocate on the device: no verdict may move.")
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


def own_variables() -> dict[str, str]:
    """The GRADCHECK_* variables: all of them, so that one with a wrong name shows."""
    return {as_text(name): as_text(value) for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}


def as_text(argument: str) -> str:
    """What was typed, as a record can hold it: bytes that are no UTF-8, in the name of a folder, as question marks."""
    return argument.encode(errors="surrogateescape").decode(errors="replace")


def typed_options(context: typer.Context) -> list[str]:
    """The parameters of a command that were typed, or set by a variable."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    # By name: typer brings a click of its own in some versions.
    return [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
