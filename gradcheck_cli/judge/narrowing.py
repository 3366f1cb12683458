"""Which cases of its matrix was a run not asked for? By the options that narrow it, from its command or a variable."""

from __future__ import annotations

from itertools import pairwise

from gradcheck_cli.errors import UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.report import Run
from gradcheck_cli.records.verdict import Verdict

_HOLDS = "-k"  # the one of which it can be told, case by case, what it leaves out
_VARIABLES = {
    _HOLDS: "GRADCHECK_K",
    "--case": "GRADCHECK_CASE",
    "--shard": "GRADCHECK_SHARD",
    "--last-failed": "GRADCHECK_LAST_FAILED",
}


def narrowing(run: Run) -> list[tuple[str, str]]:
    """Each option that narrows a run, and what it was given."""
    set_by = [(name, value) for name, variable in _VARIABLES.items() if (value := run.options.get(variable))]
    words = [(*pair, name) for pair in pairwise([*run.command, ""]) for name in _VARIABLES if pair[0].startswith(name)]
    return [*set_by, *((name, word[len(name) :].removeprefix("=") or after) for word, after, name in words)]


def narrower(new: Run, old: Run) -> list[str]:
    """The options that narrow a run and did not narrow another one, as they are written."""
    before = narrowing(old)
    return [f"{name} {value}" for name, value in narrowing(new) if (name, value) not in before]


def asked_for(verdict: Verdict, new: Run, old: Run) -> bool:
    """Whether a run was asked for a case that another one had; where another version's words cannot be read, it was."""
    more = [one for one in narrowing(new) if one not in narrowing(old)]
    if any(name != _HOLDS for name, _ in more):
        return False
    try:
        return all(compile_expression(value)(Case.of(verdict.axes)) for _, value in more)
    except (ValueError, UsageError):
        return True
