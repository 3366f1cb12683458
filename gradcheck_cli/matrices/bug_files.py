"""Which public reports does `cases/bugs/` record, and which cases are theirs? One TOML file a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gradcheck_cli import plugins
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.matrices.matrix_file import Axis, Block, Matrix, MatrixFile
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.case import DEFAULTS, LAYER, Case
from gradcheck_cli.records.known import VERSIONED
from gradcheck_cli.records.public import PublicReport, Recorded

BUGS = "bugs"
DESCRIPTION = (
    "Gradient bugs that were reported in public, each as a faulty variant that must be found, and a sound one."
)


def is_record(name: str) -> bool:
    """Whether a matrix of that name is the public record, or one report of it."""
    return name.partition("/")[0] == BUGS


def reports(folder: Path, name: str = BUGS) -> list[PublicReport]:
    """The reports of `bugs`, or the one of `bugs/a1`, in the order of their names; UsageError says what is wrong."""
    files = {path.stem: path for path in sorted((folder / BUGS).glob("*.toml"), key=_order)}
    _, one, stem = name.partition("/")
    if one and stem.lower() not in files:
        raise UsageError(f"unknown matrix {name!r}: expected {BUGS}/ and one of {', '.join(files)}")
    return [read(path) for path in ([files[stem.lower()]] if one else files.values())]


def read(path: Path) -> PublicReport:
    """One report, every case and version checked."""
    document = MatrixFile(path).document()
    try:
        report = msgspec.convert({"name": path.stem, **document}, PublicReport)
        cases = [_checked(one) for one in report.case]
    except (msgspec.ValidationError, UsageError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if bool(cases) is bool(report.out_of_reach):
        raise UsageError(f"{path}: expected cases under [[case]], or out_of_reach, which says why there are none")
    return msgspec.structs.replace(report, case=cases)


def as_matrix(name: str, found: Sequence[PublicReport]) -> Matrix:
    """The cases of reports as a matrix, a block each; NothingSelected where they have none."""
    cases = dict.fromkeys(one.case for report in found for one in report.case)
    if not cases:
        raise NothingSelected(f"nothing to run: {name} has no case; why: {found[0].out_of_reach}")
    return Matrix(name=name, description=DESCRIPTION, blocks=tuple(_block(Case.parse(case)) for case in cases))


def _order(path: Path) -> tuple[str, int]:
    letters, digits = re.fullmatch(r"(\D*)(\d*).*", path.stem, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    return letters, int(digits or 0)


def _checked(one: Recorded) -> Recorded:
    """The same with its id as every id is written; ValueError where it names what is not there."""
    case = Case.parse(one.case)
    plugins.target(case.provider, case.api)
    for mutant in one.mutants:
        if mutant not in MUTANTS:
            raise ValueError(f"mutants: expected faults of the battery, found {mutant!r}")
    for name, specifier in one.versions.items():
        if name not in VERSIONED:
            raise ValueError(f"versions of {name!r}: expected {', '.join(VERSIONED)}")
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            raise ValueError(f"versions of {name}: expected a specifier of PEP 440, found {specifier!r}") from None
    return msgspec.structs.replace(one, case=str(case))


def _block(case: Case) -> Block:
    named = {name: getattr(case, name) for name in (*LAYER, *DEFAULTS)}
    own = {name: value for name, value in named.items() if name in LAYER or value != getattr(_PLAIN, name)}
    return Block(axes=tuple(Axis(name=name, values=(value,)) for name, value in own.items()))


_PLAIN = Case(provider="p", api="a")
