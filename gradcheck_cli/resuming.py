"""What is left of a run that ended early? Its folder says what was asked, has a verdict, and was in flight."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from gradcheck_cli import __version__
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.known import Placed
from gradcheck_cli.records.report import Closed, Finished, Opened, Resumed, Run, Seen, Settings, Started
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reporters.formats import Files
from gradcheck_cli.reporters.jsonl import JOURNAL, OBSERVATIONS, REPORT, Journal, Lines, Observations
from gradcheck_cli.reporters.read import environments, journal, whole
from gradcheck_cli.reporters.standard_output import complain

_MOST_NAMED = 5


class Earlier(NamedTuple):
    """What a folder holds of the run that goes on."""

    folder: Path
    run: Run
    settings: Settings
    cases: list[str]
    placed: list[Placed]  # the verdicts that there are
    environments: list[Environment]  # of every worker, as each said it
    seconds: float
    files: Files

    @property
    def judged(self) -> set[str]:
        """The cases that need not run again."""
        return {placed.verdict.case for placed in self.placed}


@cache
def this_gradcheck() -> str:
    """`0.1.0 (sources 1f2e3d4c5b6a)`: two versions in development may have one number."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{__version__} (sources {digest.hexdigest()[:12]})"


def taken_up(folder: Path, now: Settings, typed: Collection[str]) -> Earlier | None:
    """The run in a folder, its files open; None where none has begun there.

    UsageError where another process writes there, and where what was `typed`, or gradcheck, is not as it was: names
    what. What was not typed is as it was.
    """
    path = folder / JOURNAL
    if (folder / REPORT).exists() and not path.exists():
        raise UsageError(
            f"--resume: expected {path}, found only the report of a run: `gradcheck run --last-failed {folder}` with "
            f"another --output runs what is not green in it"
        )
    if not path.exists():
        complain(f"--resume: expected a run in {folder}, found none; it begins")
        return None
    lines = Lines(path, more=True)
    try:
        return _earlier(folder, lines, now, typed)
    except BaseException:
        lines.close()
        raise


def _earlier(folder: Path, lines: Lines, now: Settings, typed: Collection[str]) -> Earlier:
    path = folder / JOURNAL
    end, torn = whole(path)
    if torn:
        complain(f"{path} broke off in its last line: {torn} bytes are dropped, and the case they spoke of runs again")
        lines.cut(end)
    told = list(journal(path))
    opened = next((line for line in told if isinstance(line, Opened)), None)
    if opened is None or opened.settings is None:
        raise UsageError(
            f"--resume: expected {path} to begin with what was asked and how; it does not, as where the run ended "
            f"before that, or an older gradcheck wrote it: begin anew with another --output"
        )
    _require_same(folder, opened.settings, now, typed)
    verdicts = {line.verdict.case: line.verdict for line in told if isinstance(line, Finished)}
    started = dict.fromkeys(line.case for line in told if isinstance(line, Started))
    in_flight = [case for case in started if case not in verdicts]
    left = len(opened.cases) - sum(case in verdicts for case in opened.cases)
    flying = f"; in flight when it ended, and run again: {', '.join(in_flight)}" if in_flight else ""
    complain(f"--resume: {left} of {len(opened.cases)} cases of {folder} are left{flying}")
    resumed = Resumed(
        at=datetime.now(timezone.utc).isoformat(timespec="seconds"), judged=len(verdicts), in_flight=in_flight
    )
    return Earlier(
        folder=folder,
        run=opened.run,
        settings=opened.settings,
        cases=opened.cases,
        placed=_placed(verdicts.values(), environments(folder)),
        environments=[line.environment for line in told if isinstance(line, Seen)],
        seconds=sum(line.seconds for line in told if isinstance(line, Closed)),
        files=Files(Journal(folder, lines, resumed=resumed), Observations(folder, _observed(folder, verdicts))),
    )


def _placed(verdicts: Iterable[Verdict], where: dict[str, Environment]) -> list[Placed]:
    """By the axes that were recorded; of the same gradcheck they are those of the id."""
    return [
        Placed(
            case=Case.of(one.axes),
            verdict=msgspec.structs.replace(one, known=""),  # which is told anew
            environment=where.get(one.case, Environment()),
        )
        for one in verdicts
    ]


def _observed(folder: Path, verdicts: Collection[str]) -> Lines:
    """The observations of cases that have a verdict; what was seen of another one will be seen again."""
    path = folder / OBSERVATIONS
    if (folder / REPORT).exists() and not path.exists():
        raise UsageError(
            f"--resume: expected {path}, found only the report of a run: `gradcheck run --last-failed {folder}` with "
            f"another --output runs what is not green in it"
        )
    if not path.exists():
        return Lines(path)
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if _case_of(line) in verdicts]
    content = b"".join(kept)
    if len(content) != path.stat().st_size:
        write_whole(path, content)
    return Lines(path, more=True)


class _OfCase(msgspec.Struct):
    case: str


def _case_of(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_OfCase).case if line.endswith(b"\n") else ""
    except msgspec.DecodeError:
        return ""


def _require_same(folder: Path, was: Settings, now: Settings, typed: Collection[str]) -> None:
    changed = [
        f"{name}: the run began with {getattr(was, name)!r}, now it is {getattr(now, name)!r}"
        for name in ("gradcheck", *typed)
        if getattr(was, name) != getattr(now, name)
    ]
    if changed:
        raise _refused(folder, changed)


def require_cases(folder: Path, was: Sequence[str], now: Sequence[str]) -> None:
    """UsageError where what was asked selects other cases than it did: a matrix or a constraint has changed."""
    changed = [
        f"matrix: {len(some)} of its cases {word}: {', '.join(some[:_MOST_NAMED])}{', ...' * (len(some) > _MOST_NAMED)}"
        for word, some in (("are gone", _without(was, now)), ("are new", _without(now, was)))
        if some
    ]
    if changed:
        raise _refused(folder, changed)


def _without(some: Sequence[str], others: Sequence[str]) -> list[str]:
    left = set(others)
    return [one for one in some if one not in left]


def require_environment(folder: Path, earlier: Sequence[Environment], now: Environment, own: Collection[str]) -> None:
    """UsageError where no worker of the earlier run stood where this one does; `own` are variables that cases set."""
    kinds = [_kind(one, own) for one in earlier]
    here = _kind(now, own)
    if not kinds or here in kinds:
        return
    names = sorted({*kinds[0], *here})
    raise _refused(
        folder,
        [
            f"{name}: the run began with {kinds[0].get(name, 'none')}, now it is {here.get(name, 'none')}"
            for name in names
            if kinds[0].get(name) != here.get(name)
        ],
    )


def _kind(where: Environment, own: Collection[str]) -> dict[str, str]:
    """What may change a verdict; of several GPUs that are alike it may have been any."""
    variables = {name: value for name, value in where.variables.items() if name not in own}
    capability = ".".join(map(str, where.compute_capability or ()))
    return {**where.versions, **variables, "device": where.device_name, "compute capability": capability}


def _refused(folder: Path, changed: Sequence[str]) -> UsageError:
    told = "\n  ".join(changed)
    return UsageError(
        f"--resume: expected the run in {folder} to go on as it began, found\n  {told}\n"
        f"put it back as it was, or begin anew with another --output"
    )
