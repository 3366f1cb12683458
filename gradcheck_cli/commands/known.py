"""What can be typed after `gradcheck known`? Two commands that keep a known file true."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from gradcheck_cli.commands.options import Bare, RunArgument

app = typer.Typer(no_args_is_help=True, help="Keep a file of known failures true. Add what is new, prune what is not.")

KnownOption = Annotated[
    str,
    typer.Option(
        "--known",
        envvar="GRADCHECK_KNOWN",
        metavar="FILE",
        help="A TOML file, or known: cases/known.toml of a checkout.",
    ),
]
WriteOption = Annotated[bool, typer.Option("--write", help="Change the file; else only say what would be changed.")]
LinkOption = Annotated[str, typer.Option("--link", metavar="URL", help="The bug report. Needed with --write.")]
OwnerOption = Annotated[str, typer.Option("--owner", metavar="NAME", help="Who looks after it. Needed with --write.")]
ExpiresOption = Annotated[
    datetime | None,
    typer.Option("--expires", formats=["%Y-%m-%d"], metavar="DAY", help="The last day it holds; default: 90 days on."),
]


@app.command(cls=Bare)
def add(
    folder: RunArgument,
    known: KnownOption = "known",
    link: LinkOption = "",
    owner: OwnerOption = "",
    expires: ExpiresOption = None,
    write: WriteOption = False,  # noqa: FBT002
) -> None:
    """Propose entries for failures that the file lacks. --write appends them to it."""
    from gradcheck_cli import known_keeping

    asked = known_keeping.Proposal(link=link, owner=owner, expires=expires.date() if expires else None)
    typer.echo("\n".join(known_keeping.add(folder, known, asked, write=write)))


@app.command(cls=Bare)
def prune(folder: RunArgument, known: KnownOption = "known", write: WriteOption = False) -> None:  # noqa: FBT002
    """Name entries that are mended, or fit no case of a run. --write removes them from the file."""
    from gradcheck_cli import known_keeping

    typer.echo("\n".join(known_keeping.prune(folder, known, write=write)))
