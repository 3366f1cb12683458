"""What is behind the failures of a finished run? Its rules, told in words, Markdown or JSON."""

from __future__ import annotations

from pathlib import Path

from gradcheck_cli.judge.rules import explain as rules_of
from gradcheck_cli.reporters import rules
from gradcheck_cli.reporters.console import open_console, require_printed
from gradcheck_cli.reporters.read import read


def explain(folder: Path, form: str) -> None:
    """Print the rules of a run; UsageError for an unknown format, or a folder that holds no run."""
    rules.require(form)
    console = open_console()
    rules.show(rules_of(read(folder)), form, console)
    require_printed(console)
