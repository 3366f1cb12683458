"""Is the code still in the shape that was agreed? The import contracts themselves are in pyproject.toml."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcheck_cli.records.verdict import Outcome

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gradcheck_cli"
SOURCES = {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module

MODULE_LINES = 250
FUNCTION_LINES = 40
MOST_FUNCTION_LINES, MOST = 24, 0.95
CATCH_ALL_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
NOT_PURE = {"os", "pathlib", "time", "datetime", "random", "subprocess", "io", "sys", "torch", "numpy"}

# Reporters name outcomes to render them, records to define them; the rest may only conclude them, each in one place.
PRODUCERS = {
    "MISSING": "judge/presence.py",
    "MISPLACED": "judge/presence.py",
    "UNEXPECTED": "judge/bystanders.py judge/presence.py",  # what was only lent, and a buffer of the gradient itself
    "PROTOCOL": "judge/presence.py",
    "NONFINITE": "judge/accuracy.py",
    "INEXACT": "judge/accuracy.py",
    "INACCURATE": "judge/accuracy.py",
    "NOT_THE_CASE": "judge/effective.py",
    "REFUSED": "judge/effective.py",
    "RAISED": "judge/effective.py",
    "TIMED_OUT": "judge/conclude.py",
    "CRASHED": "judge/conclude.py",
    "EXCLUDED": "judge/conclude.py",
}


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name}:{node.lineno} {node.name}", node


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code: neither blank nor comment."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in silent]
    return {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}


def length(where: str, node: Function) -> int:
    """Code lines of a function, its docstring left out; of a command the body alone: its options are its help text."""
    name = where.partition(":")[0]
    first = node.body[0].lineno if name.startswith("commands/") else node.lineno
    lines = code_lines(SOURCES[name]) & set(range(first, (node.end_lineno or node.lineno) + 1))
    if ast.get_docstring(node) is not None:
        lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def public(node: ast.AST) -> bool:
    return isinstance(node, Documented) and not getattr(node, "name", "").startswith("_")


def members(node: ast.AST, where: str) -> Iterator[tuple[str, Documented]]:
    """A module and everything public in it that a reader can reach by name; what a function holds inside is its own."""
    if isinstance(node, Documented) and public(node):
        yield f"{where} {getattr(node, 'name', '')}".strip(), node
        if not isinstance(node, Function):
            for inner in node.body:
                yield from members(inner, where)


def named_outcomes(name: str, *, asked_for: bool = True) -> set[str]:
    """The outcomes that a module names; without those that it only compares with, where these are not asked for."""
    compared = [inner for node in ast.walk(TREES[name]) if isinstance(node, ast.Compare) for inner in ast.walk(node)]
    return {
        node.attr
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Outcome"
        if asked_for or node not in compared
    }


def imported(tree: ast.AST) -> set[str]:
    """The first names of everything that a module imports, at its top or later."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_modules_are_short() -> None:
    lengths = {name: len(source.splitlines()) for name, source in SOURCES.items()}
    assert {name: found for name, found in lengths.items() if found > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {where: length(where, node) for where, node in functions()}
    assert {where: found for where, found in lengths.items() if found > FUNCTION_LINES} == {}


def test_most_functions_are_shorter_still() -> None:
    lengths = sorted(length(where, node) for where, node in functions())
    assert lengths[int(MOST * (len(lengths) - 1))] <= MOST_FUNCTION_LINES


def test_everything_public_says_what_it_is() -> None:
    silent = [
        where for name, tree in TREES.items() for where, node in members(tree, name) if not ast.get_docstring(node)
    ]
    assert silent == []


def test_a_module_asks_its_question_or_says_what_it_holds_in_one_line() -> None:
    first_lines = {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in TREES.items()}
    assert {name: line for name, line in first_lines.items() if not ("?" in line or line.endswith("."))} == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    assert [name for name in SOURCES if Path(name).name in CATCH_ALL_NAMES] == []


@pytest.mark.parametrize(("outcome", "producer"), PRODUCERS.items(), ids=PRODUCERS)
def test_an_outcome_is_concluded_in_one_place(outcome: str, producer: str) -> None:
    places = [name for name in SOURCES if outcome in named_outcomes(name, asked_for=False)]
    assert [name for name in places if name.split("/")[0] not in ("records", "reporters")] == producer.split()


def test_only_the_judge_concludes_a_pass() -> None:
    places = {name.split("/")[0] for name in SOURCES if "PASSED" in named_outcomes(name)}
    assert places - {"records", "reporters"} == {"judge"}


def test_no_failure_is_caught_into_a_pass() -> None:
    handlers = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    assert handlers != []
    assert [ast.unparse(node) for node in handlers if "PASSED" in ast.unparse(node)] == []


def test_every_outcome_in_the_table_exists() -> None:
    assert set(PRODUCERS) <= set(Outcome.__members__)


def test_the_judge_reads_no_file_no_clock_and_no_environment() -> None:
    found = {name: imported(tree) & NOT_PURE for name, tree in TREES.items() if name.startswith("judge/")}
    assert {name: names for name, names in found.items() if names} == {}
