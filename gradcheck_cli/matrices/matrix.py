"""Which cases does a matrix hold, which combinations does it leave out, and why?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from gradcheck_cli import paths
from gradcheck_cli.errors import UsageError
from gradcheck_cli.matrices import bug_files
from gradcheck_cli.matrices.constraints import CONSTRAINTS
from gradcheck_cli.matrices.matrix_file import NOT, Block, Matrix, MatrixFile
from gradcheck_cli.records import splits
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.public import PublicReport

# A matrix of more combinations is a slip of the pen: to list them takes a minute, to run them weeks.
LARGEST = 1_000_000


class Excluded(Record, frozen=True, kw_only=True):
    """A combination that is not run, the constraint that says so, and its reason."""

    case: Case
    constraint: str
    why: str


def enumerate_cases(matrix: Matrix, providers: Sequence[Candidate], seed: int) -> Iterator[Case | Excluded]:
    """Every combination of the matrix, each once, by provider and then in the order of the file; made one by one.

    Excluded ones come in their place with their reason. A seed other than 0 is given to every case. UsageError before
    the first where there are more than LARGEST.
    """
    combinations = sum(_size(block, candidate) for candidate in providers for block in matrix.blocks)
    if combinations > LARGEST:
        raise UsageError(
            f"matrix {matrix.name}: expected at most {LARGEST:,} combinations of axis values, found "
            f"{shortened(f'{combinations:,}')}; leave out values, or make several files of it"
        )
    cases = (case for candidate in providers for block in matrix.blocks for case in _product(block, candidate, seed))
    return (excluded(case) or case for case in _each_once(cases))


def _size(block: Block, candidate: Candidate) -> int:
    """How many combinations a block has for a provider, before any is made."""
    axes = {axis.name: axis.values for axis in block.axes}
    if candidate.name not in axes.pop("provider", (candidate.name,)):
        return 0
    apis = len(_apis(axes.pop("api", ()), candidate))
    return apis * (len(block.listed) if block.cover else math.prod(map(len, axes.values())))


def _each_once(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases without those that came before; remembered are 16 bytes of each, and not the case."""
    seen: set[bytes] = set()
    for case in cases:
        mark = blake2b(str(case).encode(), digest_size=16).digest()
        if mark not in seen:
            seen.add(mark)
            yield case


def excluded(case: Case, *, named: bool = False) -> Excluded | None:
    """The first constraint that rejects a case, with its reason; None where the case can be run.

    One that was asked for by its id may have what no matrix tries.
    """
    due = (it for it in CONSTRAINTS if not (named and it.in_matrices))
    return next((Excluded(case=case, constraint=it.name, why=it.why) for it in due if it.rejects(case)), None)


def load(name_or_path: str, within: tuple[str, ...] = ()) -> Matrix:
    """A matrix by its name in `cases/`, or from a TOML file; UsageError says what is wrong, and on which line.

    `within` are the matrices that include it, from the outermost on.
    """
    if bug_files.is_record(name_or_path):
        return bug_files.as_matrix(name_or_path, public_reports(name_or_path))
    path = _files().get(name_or_path, Path(name_or_path))
    if not paths.is_file(path):
        raise UsageError(
            f"unknown matrix {shortened(repr(name_or_path))}: "
            f"expected one of {', '.join(name for name, _ in available())}, "
            f"or the path of a TOML file"
        )
    if name_or_path in within:
        raise UsageError(f"matrix {within[0]}: expected no matrix to include itself, found {', '.join(within)} do")
    found = MatrixFile(path).read()
    included = (load(name, (*within, name_or_path)) for name in found.include)
    return msgspec.structs.replace(found, blocks=(*found.blocks, *(block for one in included for block in one.blocks)))


def available() -> list[tuple[str, str]]:
    """Name and description of every matrix in `cases/`."""
    documents = {name: MatrixFile(path).document() for name, path in _files().items()}
    # Not every file there is a matrix: those without either hold something else.
    matrices = {name: document for name, document in documents.items() if {"block", "include"} & document.keys()}
    named = [(name, document.get("description", "")) for name, document in matrices.items()]
    return sorted([*named, (bug_files.BUGS, bug_files.DESCRIPTION)])


def public_reports(name: str = bug_files.BUGS) -> list[PublicReport]:
    """What is recorded under the matrix `bugs`, or one report of it, `bugs/a1`; of any other matrix nothing."""
    return bug_files.reports(folder(Path(__file__).parent.parent), name) if bug_files.is_record(name) else []


def folder(package: Path) -> Path:
    """Where the matrices lie: inside the installed package, or next to it in a checkout."""
    inside = package / "cases"
    return inside if inside.is_dir() else package.parent / "cases"


def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder(Path(__file__).parent.parent).glob("*.toml"))}


def _product(block: Block, candidate: Candidate, seed: int) -> Iterator[Case]:
    axes = {axis.name: axis.values for axis in block.axes}
    if candidate.name not in axes.pop("provider", (candidate.name,)):
        return
    for api in _apis(axes.pop("api", ()), candidate):
        if block.cover:
            yield from (msgspec.structs.replace(case, seed=seed) for case in _rows(block, candidate.name, api))
            continue
        for values in itertools.product(*axes.values()):
            point = _settled(dict(zip(axes, values, strict=True)), seed)
            yield Case(provider=candidate.name, api=api, **point)


def _rows(block: Block, provider: str, api: str) -> list[Case]:
    """The cases of a layer in a cover; one that it does not know gets those of the last layer that it has."""
    own = [case for case in block.listed if (case.provider, case.api) == (provider, api)]
    if own or not block.listed:
        return own
    last = block.listed[-1]
    others = [case for case in block.listed if (case.provider, case.api) == (last.provider, last.api)]
    return [msgspec.structs.replace(case, provider=provider, api=api) for case in others]


def covered(matrix: Matrix) -> Block:
    """The block of a matrix that has a cover; UsageError where none has one."""
    found = next((block for block in matrix.blocks if block.cover), None)
    if found is None:
        raise UsageError(f"matrix {matrix.name}: expected a [[block]] with cover = 2 or more; found none")
    return found


def _apis(wanted: tuple[str, ...], candidate: Candidate) -> list[str]:
    """Of the provider's apis those named, or where none is named all, less those named with `not provider:api`."""
    excluded = [value.removeprefix(NOT).split(":") for value in wanted if value.startswith(NOT)]
    unwanted = [api for provider, api in excluded if provider == candidate.name]
    named = [value for value in wanted if not value.startswith(NOT)] or list(candidate.apis)
    return [api for api in named if api in candidate.apis and api not in unwanted]


def _settled(point: dict[str, Any], seed: int) -> dict[str, Any]:
    sizes = str(point.get("m_splits", "balanced"))
    if sizes not in splits.FEWEST_EXPERTS:
        # An explicit list is itself the number of experts and their sizes.
        point = {name: value for name, value in point.items() if name != "tokens_per_expert"}
        point["num_gemms"] = len(sizes.split(","))
    return point | {"seed": seed} if seed else point
