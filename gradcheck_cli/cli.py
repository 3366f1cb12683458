"""What happens to what was typed? A command's exit code, or a message and the exit code of what went wrong."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import typer

from gradcheck_cli import __version__
from gradcheck_cli.commands import finished, known, reproduction, running
from gradcheck_cli.commands.options import VersionOption
from gradcheck_cli.errors import GradcheckError, HarnessError
from gradcheck_cli.reporters.plain_text import printable

app = typer.Typer(
    name="gradcheck",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would render the help, at twice the time of everything else together
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Did every gradient of a grouped linear layer arrive where it must, and is it right?",
)


for commands in (running, finished, reproduction):
    app.add_typer(commands.app)
app.add_typer(known.app, name="known")


@app.callback(invoke_without_command=True)
def root(version: VersionOption = False) -> None:  # noqa: FBT002
    """Not torch.autograd.gradcheck: no finite differences, but delivery and exactness of gradients, case by case."""
    if version:
        typer.echo(f"gradcheck {__version__}")
        raise typer.Exit


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
        typer.echo(f"gradcheck: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Files answer for themselves; what is left is standard output, and a machine out of processes or files.
        typer.echo(f"gradcheck: expected to go on, the system said: {printable(str(error))}", err=True)
        sys.exit(HarnessError.exit_code)
    except Exception:  # noqa: BLE001  whatever it is, exit code 1 would call it a finding
        traceback.print_exc()
        typer.echo("gradcheck: gradcheck itself failed; please report it with the lines above", err=True)
        sys.exit(HarnessError.exit_code)
