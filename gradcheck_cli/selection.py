"""Which cases does a run execute, and on what? From what was asked to a list of cases, nothing dropped silently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gradcheck_cli import installed, matrix, plugins
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.expression import compile_expression
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.verdict import Verdict

AUTO = "auto"


class Asked(Record, frozen=True, kw_only=True):
    """What the user typed, defaults filled in."""

    matrix: str = "core"
    provider: Sequence[str] = (AUTO,)
    expression: str = ""
    case: Sequence[str] = ()
    shard: str = ""
    seed: int = 0


class Selection(Record, frozen=True, kw_only=True):
    """The cases to run, those excluded with their reasons, and who builds them."""

    candidates: tuple[Candidate, ...]
    chosen_because: str  # of `auto`, in words; "" where providers were named
    cases: tuple[Case, ...]
    excluded: tuple[matrix.Excluded, ...]


def select(asked: Asked) -> Selection:
    """Enumerate, then filter the list. UsageError or NothingSelected say what to change."""
    named = [_seeded(parse(text), asked.seed) for text in asked.case]
    candidates, why = providers(asked, named)
    points = _points(asked, named, candidates)
    wanted = compile_expression(asked.expression) if asked.expression else lambda _: True
    kept = part([point for point in points if wanted(case_of(point))], asked.shard)
    cases = tuple(point for point in kept if isinstance(point, Case))
    excluded = tuple(point for point in kept if isinstance(point, matrix.Excluded))
    if not cases:
        raise NothingSelected(_nothing(asked, candidates, len(points), excluded))
    return Selection(candidates=candidates, chosen_because=why, cases=cases, excluded=excluded)


def again(asked: Asked, verdicts: Sequence[Verdict], folder: Path) -> Asked:
    """The same with the cases of a finished run that a gate would not let pass in place of the matrix."""
    failed = [verdict.case for verdict in verdicts if not verdict.outcome.green]
    if not failed:
        raise NothingSelected(
            f"nothing to run: every case of {folder} was green; without --last-failed all of them run"
        )
    named = [str(parse(text)) for text in asked.case]
    kept = [case for case in failed if not named or case in named]
    if not kept:
        raise NothingSelected(f"nothing to run: no --case is among the {len(failed)} that were not green in {folder}")
    return msgspec.structs.replace(asked, case=kept)


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
    names = list(dict.fromkeys(asked.provider))
    if AUTO not in names:
        return tuple(plugins.candidate(name) for name in names), ""
    if named:
        return tuple(plugins.candidate(name) for name in dict.fromkeys(case.provider for case in named)), ""
    te = plugins.candidate("te")
    why_not = installed.closed(te)
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


def _points(asked: Asked, named: list[Case], candidates: tuple[Candidate, ...]) -> list[Case | matrix.Excluded]:
    if not asked.case:
        return matrix.enumerate_cases(matrix.load(asked.matrix), list(candidates), asked.seed)
    names = [candidate.name for candidate in candidates]
    return [matrix.excluded(case) or case for case in dict.fromkeys(named) if case.provider in names]


def _seeded(case: Case, seed: int) -> Case:
    return msgspec.structs.replace(case, seed=seed) if seed else case


def _nothing(
    asked: Asked, candidates: tuple[Candidate, ...], enumerated: int, excluded: tuple[matrix.Excluded, ...]
) -> str:
    names = " or ".join(candidate.name for candidate in candidates)
    if excluded:
        return f"nothing to run: all {len(excluded)} selected cases are excluded; the first: {excluded[0].why}"
    where = "the list of cases named" if asked.case else f"matrix {Path(asked.matrix).name}"
    if not enumerated:
        return f"nothing to run: {where} has no case for provider {names}{_made_for(asked)}"
    filters = [f"-k {asked.expression!r}"] * bool(asked.expression) + [f"--shard {asked.shard}"] * bool(asked.shard)
    return (
        f"nothing to run: {' with '.join(filters)} leaves none of the {enumerated} cases of {where} "
        f"for provider {names}; `gradcheck list` without it shows them"
    )


def _made_for(asked: Asked) -> str:
    if asked.case:
        return f"; their providers are {', '.join(dict.fromkeys(parse(text).provider for text in asked.case))}"
    axes = [axis for block in matrix.load(asked.matrix).blocks for axis in block if axis.name == "provider"]
    only = dict.fromkeys(value for axis in axes for value in axis.values)
    return f"; it is made for --provider {' or '.join(only)}" if only else ""
