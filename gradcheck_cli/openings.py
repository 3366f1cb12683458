"""Which recipe, dtype and path runs here? The capability table of one candidate in a machine's environment, in words.

Asked of `records/capability.py` for cases of which nothing else is closed: each expert's tokens and all features are
multiples of what every recipe and path asks for.
"""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.capability import closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.doubts import ASSUMED, doubts
from gradcheck_cli.records.dtype import DtypeName, RecipeName
from gradcheck_cli.records.environment import Environment

PADDED: dict[str, Any] = {"m_splits": "128,256", "in_features": 256, "out_features": 128}
# The head of a column -> what its cases ask for. A chain is left to its op, whose rows are its own.
TE: dict[str, dict[str, Any]] = {
    "module legacy": {"api": "module", "path": "legacy"},
    "module native": {"api": "module", "path": "native"},
    "module cutlass": {"api": "module", "path": "cutlass"},
    "module packed": {"api": "module", "path": "native", "single_grouped_weight": 1},
    "op legacy": {"api": "op", "path": "legacy"},
    "op native": {"api": "op", "path": "native"},
    "op": {"api": "op"},
    "op packed": {"api": "op", "single_grouped_weight": 1},
}
LEGEND = (
    "cutlass: NVTE_USE_CUTLASS_GROUPED_GEMM=1; packed: single_grouped_weight=1, of the module with path=native; "
    "falls back: runs its other path, in silence; "
    "op chooses its path by itself, and op_mlp is refused where op is; what opens an entry is all of its numbers"
)
UNCONFIRMED = "?"
Rows = list[list[str]]


def table(candidate: Candidate, environment: Environment, width: int) -> list[str]:
    """The table, and below it what closes its entries and what opens them; one line where nothing is closed.

    In `width` columns, where one entry beside its recipe fits into them.
    """
    if candidate.name != "te":
        columns = {api: {"api": api} for api in candidate.apis}
        rows, whys = _rows(candidate.name, ["none"], columns, environment, "")
        return [*_fitting([*_head(columns), *rows], width), *whys] if whys else ["every path is open"]
    unsure = doubts(environment)
    left_out = {name: why for name in get_args(RecipeName) if (why := _left_out(name))}
    recipes = [name for name in get_args(RecipeName) if name not in left_out]
    rows, whys = _rows(candidate.name, recipes, TE, environment, UNCONFIRMED if unsure else "")
    return [
        *_assumed(environment),
        *_fitting([*_head(TE), *rows], width),
        *whys,
        *(f"{name} is run nowhere: {why}" for name, why in left_out.items()),
        LEGEND,
        *(f"{UNCONFIRMED} unconfirmed: {why}" for why in unsure),
    ]


def _assumed(environment: Environment) -> list[str]:
    if environment.compute_capability is not None:
        return []
    cublas = "" if environment.version("cublaslt") else ", without a cuBLASLt"
    return [
        "no CUDA device is in use: this is the table of compute capability {}.{}, assumed{}".format(*ASSUMED, cublas)
    ]


def _left_out(recipe: str) -> str:
    """Why no matrix has the recipe; "" where some do."""
    found = matrix.excluded(Case.of({"provider": "te", "recipe": recipe, **PADDED, **TE["module legacy"]}))
    return found.why if found else ""


def _head(columns: dict[str, dict[str, Any]]) -> Rows:
    """The names of the columns, a word a line."""
    first, second = ([[*column.split(), ""][line] for column in columns] for line in (0, 1))
    return [["recipe", "dtype", *first], *([["", "", *second]] if any(second) else [])]


def _rows(
    provider: str, recipes: list[str], columns: dict[str, dict[str, Any]], environment: Environment, mark: str
) -> tuple[Rows, list[str]]:
    """A row for the dtypes of a recipe that fare alike, and all that closes an entry, with its number."""
    numbers: dict[str, int] = {}
    found: dict[tuple[str, ...], list[str]] = {}  # recipe and cells -> dtypes
    for recipe, dtype in product(recipes, get_args(DtypeName)):
        axes = {"provider": provider, "recipe": recipe, "dtype": dtype, **PADDED}
        cells = [_cell(Case.of({**axes, **asked}), environment, mark, numbers) for asked in columns.values()]
        found.setdefault((recipe, *cells), []).append(dtype)
    rows = [[recipe, " ".join(dtypes), *cells] for (recipe, *cells), dtypes in found.items()]
    return rows, [f"{number}  {why}" for why, number in numbers.items()]


def _cell(case: Case, environment: Environment, mark: str, numbers: dict[str, int]) -> str:
    """What becomes of a case here, with the numbers of all that closes it; what has none yet is given the next."""
    due = closed(case, environment)
    whys = [f"{gate.found}; opens with {gate.unlock}" for row in due for gate in row.gates]
    said = "runs" if not due else "falls back" if all(row.falls_back_to for row in due) else "refused"
    told = sorted({numbers.setdefault(why, len(numbers) + 1) for why in whys})
    return f"{said}{mark} {','.join(map(str, told))}".rstrip()


def _fitting(rows: Rows, width: int) -> list[str]:
    """One table, or where that is too wide one for each api, the first word above a column, or as many as it takes."""
    whole, api = _aligned(rows), rows[0]
    if max(map(len, whole)) <= width:
        return whole
    tables: list[list[int]] = []
    for column in range(2, len(api)):
        last = tables[-1] if tables and api[tables[-1][-1]] == api[column] else []
        if last and max(map(len, _aligned(_part(rows, [*last, column])))) <= width:
            last.append(column)
        else:
            tables.append([column])
    return [line for columns in tables for line in _aligned(_part(rows, columns))]


def _part(rows: Rows, columns: list[int]) -> Rows:
    return [[*cells[:2], *(cells[i] for i in columns)] for cells in rows]


def _aligned(rows: Rows) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
