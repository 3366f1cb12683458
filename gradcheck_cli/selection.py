"""Which cases does a run execute, and on what? From what was asked to a list of cases, nothing dropped silently."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gradcheck_cli import installed, plugins
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.matrices import bug_files, matrix
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.unpacked import Unpacked

AUTO = "auto"

T = TypeVar("T")


class Asked(Record, frozen=True, kw_only=True):
    """What the user typed, defaults filled in."""

    matrix: str = "core"
    provider: Sequence[str] = (AUTO,)
    expression: str = ""
    case: Sequence[str] = ()
    shard: str = ""
    seed: int = 0
    te: Unpacked | None = None  # in the workers in place of what is installed


class Selection(Record, frozen=True, kw_only=True):
    """The cases to run, those excluded with their reasons, and who builds them."""

    candidates: tuple[Candidate, ...]
    chosen_because: str  # of `auto`, in words; "" where providers were named
    cases: tuple[Case, ...]
    excluded: tuple[matrix.Excluded, ...]


def select(asked: Asked) -> Selection:
    """Enumerate, then filter the list. UsageError or NothingSelected say what to change."""
    named, candidates, why = _asked_for(asked)
    kept = list(_kept(asked, named, candidates))
    return Selection(
        candidates=candidates,
        chosen_because=why,
        cases=tuple(point for point in kept if isinstance(point, Case)),
        excluded=tuple(point for point in kept if isinstance(point, matrix.Excluded)),
    )


def each(asked: Asked) -> Iterator[Case | matrix.Excluded]:
    """The same one after the other, as they are enumerated, so that a large matrix takes no memory.

    UsageError comes before the first, NothingSelected after the last where no case was among them.
    """
    named, candidates, _ = _asked_for(asked)
    return _kept(asked, named, candidates)


def _asked_for(asked: Asked) -> tuple[list[Case], tuple[Candidate, ...], str]:
    """The named cases, the candidates, and why those."""
    named = [_seeded(parse(text), asked.seed) for text in asked.case]
    candidates, why = providers(asked, named)
    if asked.te:
        require_te(candidates, why)
    return named, candidates, why


def _kept(asked: Asked, named: list[Case], candidates: tuple[Candidate, ...]) -> Iterator[Case | matrix.Excluded]:
    """The points of what was enumerated that -k and --shard leave."""
    wanted = compile_expression(asked.expression) if asked.expression else lambda _: True
    enumerated = Counted(_points(asked, named, candidates))
    kept = Counted(part((point for point in enumerated if wanted(case_of(point))), asked.shard))
    return _some(asked, candidates, enumerated, kept)


def _some(
    asked: Asked, candidates: tuple[Candidate, ...], enumerated: Counted, kept: Counted
) -> Iterator[Case | matrix.Excluded]:
    """The points that are kept; NothingSelected at the end where none of them is a case."""
    first, found = None, False
    for point in kept:
        found = found or isinstance(point, Case)
        first = first or point
        yield point
    if not found:
        raise NothingSelected(_nothing(asked, candidates, enumerated.count, kept.count, first))


class Counted:
    """Points that are counted as they go by."""

    def __init__(self, points: Iterable[Case | matrix.Excluded]) -> None:
        self._points = points
        self.count = 0

    def __iter__(self) -> Iterator[Case | matrix.Excluded]:
        for point in self._points:
            self.count += 1
            yield point


def again(asked: Asked, verdicts: Sequence[Verdict], folder: Path) -> Asked:
    """The same with the cases of a finished run that a gate would not let pass in place of the matrix."""
    failed = [verdict.case for verdict in verdicts if not verdict.green]
    if not failed:
        raise NothingSelected(
            f"nothing to run: every case of {folder} was green; without --last-failed all of them run"
        )
    named = [str(_seeded(parse(text), asked.seed)) for text in asked.case]
    kept = [case for case in failed if not named or case in named]
    if not kept:
        raise NothingSelected(f"nothing to run: no --case is among the {len(failed)} that were not green in {folder}")
    # Their ids say all: one without a seed ran with seed 0.
    return msgspec.structs.replace(asked, case=kept, seed=0)


def parse(text: str) -> Case:
    """A case from its id; UsageError says what is wrong with it."""
    try:
        case = Case.parse(text)
    except ValueError as error:
        raise UsageError(f"{shortened(repr(text))} is not a case: {error}") from None
    plugins.target(case.provider, case.api)
    return case


def providers(asked: Asked, named: list[Case]) -> tuple[tuple[Candidate, ...], str]:
    """The candidates of a run; for `auto`, which one and why."""
    asked_for, why = list(dict.fromkeys(asked.provider)), ""
    if named:
        own = list(dict.fromkeys(case.provider for case in named))
        _no_others(own, asked_for)
        asked_for = own
    elif AUTO in asked_for:
        own, why = _of_the_record(asked) if bug_files.is_record(asked.matrix) else _alone(automatic(asked.te))
        asked_for = list(dict.fromkeys(name for one in asked_for for name in (own if one == AUTO else [one])))
    return tuple(plugins.candidate(name) for name in asked_for), why


def _of_the_record(asked: Asked) -> tuple[list[str], str]:
    """The providers of the cases of public reports that this machine can run, and which it cannot, and why."""
    axes = [axis for block in matrix.load(asked.matrix).blocks for axis in block.axes if axis.name == "provider"]
    names = sorted({str(value) for axis in axes for value in axis.values})
    closed = {name: installed.closed(plugins.candidate(name), asked.te) for name in names}
    open_ = [name for name in names if not closed[name]]
    shut = [f"not {name}: {why}" for name, why in closed.items() if why]
    return open_, "; ".join([f"providers {', '.join(open_)}, of which the public reports have cases", *shut])


def _alone(chosen: tuple[str, str]) -> tuple[list[str], str]:
    return [chosen[0]], chosen[1]


def automatic(unpacked: Unpacked | None = None) -> tuple[str, str]:
    """The provider that `auto` stands for on this machine, and why; who names an unpacked version means that one."""
    te = plugins.candidate("te")
    if unpacked:
        return "te", f"provider te: --te names Transformer Engine {unpacked.version}"
    why_not = installed.closed(te)
    if why_not:
        return "torch", f"provider torch, the embedded default; not te: {why_not}"
    version = installed.version(te.distribution)
    return "te", f"provider te: transformer-engine {version} and a CUDA driver are here"


def _no_others(own: list[str], asked_for: list[str]) -> None:
    """UsageError where a named case belongs to a provider that was not asked for."""
    others = [name for name in own if name not in asked_for]
    if others and AUTO not in asked_for:
        raise UsageError(
            f"--case names cases of provider {', '.join(others)}, and --provider asks for {', '.join(asked_for)}; "
            f"leave --provider out, or drop these cases"
        )


def part(points: Iterable[T], shard: str) -> Iterable[T]:
    """Every N-th point from the I-th on, for `I/N`; the N parts are disjoint and make up the whole."""
    if not shard:
        return points
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    index, count = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(f"--shard {shortened(shard)}: expected I/N with 1 <= I <= N, such as 2/4")
    return itertools.islice(points, index - 1, None, count)


def case_of(point: Case | matrix.Excluded) -> Case:
    """The case itself, excluded or not."""
    return point.case if isinstance(point, matrix.Excluded) else point


def _points(asked: Asked, named: list[Case], candidates: tuple[Candidate, ...]) -> Iterable[Case | matrix.Excluded]:
    if not asked.case:
        return matrix.enumerate_cases(matrix.load(asked.matrix), candidates, asked.seed)
    return [matrix.excluded(case, named=True) or case for case in dict.fromkeys(named)]


def _seeded(case: Case, seed: int) -> Case:
    """A case that names no seed of its own gets the one of the run."""
    return case if case.seed else msgspec.structs.replace(case, seed=seed)


def _nothing(
    asked: Asked,
    candidates: tuple[Candidate, ...],
    enumerated: int,
    left: int,
    first: Case | matrix.Excluded | None,
) -> str:
    names = " or ".join(candidate.name for candidate in candidates)
    if isinstance(first, matrix.Excluded):
        return f"nothing to run: all {left} selected cases are excluded; the first: {first.why}"
    where = "the list of cases named" if asked.case else f"matrix {Path(asked.matrix).name}"
    if not enumerated:
        return f"nothing to run: {where} has no case for provider {names}{_made_for(asked)}"
    expression = shortened(repr(asked.expression))
    filters = [f"-k {expression}"] * bool(asked.expression) + [f"--shard {asked.shard}"] * bool(asked.shard)
    return (
        f"nothing to run: {' with '.join(filters)} leaves none of the {enumerated} cases of {where} "
        f"for provider {names}; `gradcheck list` without it shows them"
    )


def _made_for(asked: Asked) -> str:
    axes = [axis for block in matrix.load(asked.matrix).blocks for axis in block.axes if axis.name == "provider"]
    only = dict.fromkeys(value for axis in axes for value in axis.values)
    return f"; it is made for --provider {' or '.join(only)}" if only else ""


def require_te(candidates: Sequence[Candidate], why: str = "") -> None:
    """UsageError where no Transformer Engine is on trial, which an unpacked one could be put under."""
    if all(candidate.distribution == "torch" for candidate in candidates):
        names = ", ".join(candidate.name for candidate in candidates)
        raise UsageError(
            f"--te names a Transformer Engine: expected a provider that uses it, found {names}"
            f"{f' ({why})' if why else ''}; ask for --provider te, or leave --te out"
        )
