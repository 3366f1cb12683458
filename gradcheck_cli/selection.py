"""Which cases does a run execute, and on what? From what was asked to a list of cases, nothing dropped silently."""

from __future__ import annotations

from pathlib import Path

from gradcheck_cli import installed, matrix, plugins
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case

AUTO = "auto"


class Asked(Record, frozen=True, kw_only=True):
    """What the user typed, defaults filled in."""

    matrix: str = "core"
    provider: tuple[str, ...] = (AUTO,)
    expression: str = ""
    case: tuple[str, ...] = ()
    shard: str = ""
    device: str = ""
    seed: int = 0


class Selection(Record, frozen=True, kw_only=True):
    """The cases to run, those excluded with their reasons, who builds them, and on which device."""

    candidates: tuple[Candidate, ...]
    chosen_because: str  # of `auto`, in words; "" where providers were named
    device: str
    cases: tuple[Case, ...]
    excluded: tuple[matrix.Excluded, ...]


def select(asked: Asked, among: frozenset[str] | None = None) -> Selection:
    """Enumerate, then filter the list; `among` keeps only these ids. UsageError or NothingSelected say what to change."""
    named = [parse(text) for text in asked.case]
    candidates, why = providers(asked, named)
    if named:
        points = [matrix.excluded(case) or case for case in dict.fromkeys(named)]
    else:
        points = matrix.enumerate_cases(matrix.load(asked.matrix), list(candidates), asked.seed)
    wanted = compile_expression(asked.expression) if asked.expression else lambda _: True
    kept = [point for point in points if wanted(case_of(point)) and (among is None or str(case_of(point)) in among)]
    kept = part(kept, asked.shard)
    cases = tuple(point for point in kept if isinstance(point, Case))
    excluded = tuple(point for point in kept if isinstance(point, matrix.Excluded))
    if not cases:
        raise NothingSelected(_nothing(asked, candidates, len(points), excluded))
    return Selection(
        candidates=candidates,
        chosen_because=why,
        device=asked.device or ("cuda:0" if installed.cuda_devices() else "cpu"),
        cases=cases,
        excluded=excluded,
    )


def parse(text: str) -> Case:
    """A case from its id; UsageError says what is wrong with it."""
    try:
        case = Case.parse(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a case: {error}") from None
    plugins.target(case.provider, case.api)
    return case


def providers(asked: Asked, named: list[Case]) -> tuple[tuple[Candidate, ...], str]:
    """The candidates of a run; for `auto`, which one and why."""
    if named:
        return tuple(plugins.candidate(name) for name in dict.fromkeys(case.provider for case in named)), ""
    names = list(dict.fromkeys(asked.provider)) or [AUTO]
    if AUTO not in names:
        return tuple(plugins.candidate(name) for name in names), ""
    te = plugins.candidate("te")
    why_not = installed.closed(te, installed.cuda_devices())
    if why_not:
        return (plugins.candidate("torch"),), f"provider torch, the embedded default; not te: {why_not}"
    return (te,), f"provider te: transformer-engine {installed.version(te.distribution)} and a CUDA driver are here"


def part(points: list[Case | matrix.Excluded], shard: str) -> list[Case | matrix.Excluded]:
    """Every N-th point from the I-th on, for `I/N`; the N parts are disjoint and make up the whole."""
    if not shard:
        return points
    index, _, count = shard.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise UsageError(f"--shard {shard}: expected I/N with 1 <= I <= N, such as 2/4")
    return points[int(index) - 1 :: int(count)]


def case_of(point: Case | matrix.Excluded) -> Case:
    """The case itself, excluded or not."""
    return point.case if isinstance(point, matrix.Excluded) else point


def _nothing(
    asked: Asked, candidates: tuple[Candidate, ...], enumerated: int, excluded: tuple[matrix.Excluded, ...]
) -> str:
    names = ", ".join(candidate.name for candidate in candidates)
    if excluded:
        return f"nothing to run: all {len(excluded)} selected cases are excluded; the first: {excluded[0].why}"
    if not enumerated:
        axes = [axis for block in matrix.load(asked.matrix).blocks for axis in block if axis.name == "provider"]
        only = dict.fromkeys(value for axis in axes for value in axis.values)
        meant = f"; it is made for --provider {' or '.join(only)}" if only else ""
        return f"nothing to run: matrix {asked.matrix} has no case for provider {names}{meant}"
    what = (
        f"-k {asked.expression!r}" if asked.expression else f"--shard {asked.shard}" if asked.shard else "the selection"
    )
    where = "the cases named" if asked.case else f"matrix {Path(asked.matrix).name}"
    return (
        f"nothing to run: {what} matches none of the {enumerated} cases of {where} for provider {names}; "
        f"`gradcheck list` with the same options shows them"
    )
