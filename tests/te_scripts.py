"""What are the lines of a script of Transformer Engine? For tests that read them, or run them with the stand-in."""

from __future__ import annotations

import ast

from gradcheck_cli import plugins
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.reproduce.makings import making
from gradcheck_cli.reproduce.script import body
from gradcheck_cli.reproduce.wanted import Wanted, kinds


def written(case: str, failure: Failure, device: str = "cuda", version: str = "2.20.2") -> list[str]:
    """The lines of a script of Transformer Engine, with the first data that is tried."""
    one = Case.parse(case)
    here = Environment(versions={"transformer_engine": version})
    made = making(one, plugins.target(one.provider, one.api), plugins.variables(one), here)
    lines = body(Wanted(one, failure, kinds(one, failure)[0], device), made)
    ast.parse("\n".join(lines))
    return lines
