"""What does a run's folder say? Its report; where the run was cut off, as much as the journal holds."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gradcheck_cli import paths
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import OBSERVATION_VERSION, SCHEMA_VERSION
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import coverage, together
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import (
    Closed,
    Finished,
    JournalLine,
    Opened,
    Report,
    Resumed,
    Seen,
    Started,
    exit_code,
    in_order,
    tally,
)
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reporters.jsonl import JOURNAL, OBSERVATIONS, REPORT
from gradcheck_cli.reporters.standard_output import complain
from gradcheck_cli.reporters.unchanged import named_once, unchanged

_INTERRUPTED = 130
# What was concluded can be read however old it is: a field that came later has a default, which says that it was not
# there. Observations are read in their own version alone: what an older one did not look at cannot be judged.
_OLDEST = 0
_CUT_OFF = "expected a verdict after the case was started, found none in the journal: the run was cut off here"
_ANEW = "record the run again"
_NEVER_RUN = "expected the case to run; the run ended before it"
_decode_report: Callable[[bytes], Report] = msgspec.json.Decoder(Report).decode
_decode_observation: Callable[[bytes], Observation] = msgspec.json.Decoder(Observation).decode
_decode_line: Callable[[bytes], JournalLine] = msgspec.json.Decoder(JournalLine).decode

T = TypeVar("T")


class _Versioned(msgspec.Struct):
    schema: int


def read(folder: Path) -> Report:
    """The report of a run; UsageError where the folder holds none that this version can read."""
    path, instead = folder / REPORT, folder / JOURNAL
    if paths.is_file(path):
        raw = _bytes(path)
        if _is_json(raw) or not instead.is_file():
            return unchanged(_record(raw, _decode_report, where=str(path)), path)
        _say(f"{path} breaks off, or holds no JSON: what is told is what {instead} holds")
    if paths.is_file(instead):
        return _rebuilt(instead)
    raise UsageError(
        f"no run in {shortened(folder)}: expected {REPORT} or {JOURNAL} there, as `gradcheck run` writes them"
    )


@functools.cache  # a journal is read for more than one question, and spoken of once
def _say(what: str) -> None:
    complain(what)


def journal(path: Path) -> list[JournalLine]:
    """The lines of a journal; one that holds no JSON is passed over, and told of where it is not the last."""
    lines = []
    for place, line in _placed(path):
        if _is_json(line):
            lines.append(_record(line, _decode_line, where=place))
        else:
            _say(f"{place} breaks off, or holds no JSON: it is passed over, and what it said is not told")
    return lines


def whole(path: Path) -> tuple[int, int]:
    """Where the last whole line of a journal ends, and how many bytes of an unfinished one stand behind it."""
    raw = _bytes(path)
    end = len(raw)
    while end and not (raw[:end].endswith(b"\n") and _is_json(raw[raw.rfind(b"\n", 0, end - 1) + 1 : end])):
        end = raw.rfind(b"\n", 0, end - 1) + 1
    return end, len(raw) - end


def observations(folder: Path) -> list[tuple[str, Observation]]:
    """Each observation of a run and the file and line where it stands; a file of them may be kept as `.gz`."""
    path = observations_file(folder)
    if path is None:
        raise UsageError(
            f"nothing to judge in {folder}: expected {OBSERVATIONS} or {OBSERVATIONS}.gz there, as `gradcheck run` "
            f"writes it; without it `gradcheck report` shows what the run concluded"
        )
    instead = f"record the run again to judge it; `gradcheck report {folder}` still shows what it concluded"
    return _lines(path, _decode_observation, OBSERVATION_VERSION, instead, oldest=OBSERVATION_VERSION)


def observations_file(folder: Path) -> Path | None:
    """Where the observations of a run lie, if they do."""
    paths = (folder / OBSERVATIONS, folder / f"{OBSERVATIONS}.gz")
    return next((path for path in paths if path.is_file()), None)


def environments(folder: Path) -> dict[str, Environment]:
    """Case -> where it was judged to have run; empty where the folder holds no journal."""
    where, here = {}, Environment()
    for line in journal(folder / JOURNAL) if (folder / JOURNAL).is_file() else ():
        if isinstance(line, Seen):
            here = line.environment
        if isinstance(line, Started):
            where[line.case] = here
        if isinstance(line, Finished) and line.verdict.case in where:
            where[line.verdict.case] = here
    return where


def _lines(path: Path, decode: Callable[[bytes], T], version: int, instead: str, oldest: int) -> list[tuple[str, T]]:
    """The records of a file of lines, each with its place; a last line that was left unfinished is passed over."""
    return [
        (place, _record(line, decode, where=place, version=version, instead=instead, oldest=oldest))
        for place, line in _placed(path)
    ]


def _placed(path: Path) -> list[tuple[str, bytes]]:
    """Each line and its place, without those that hold nothing, and without a last one that was left unfinished."""
    # A machine that lost its power may have left zero bytes where the last lines would be.
    numbered = [(i, line) for i, line in enumerate(_bytes(path).split(b"\n"), 1) if line.strip(b"\0 \r")]
    if numbered and not _is_json(numbered[-1][1]):
        numbered.pop()
    return [(f"{path}, line {number}", line) for number, line in numbered]


def _rebuilt(path: Path) -> Report:
    lines = journal(path)
    beginnings = [line for line in lines if isinstance(line, Opened)]
    if len(beginnings) > 1:
        raise UsageError(f"{path} holds {len(beginnings)} runs, one after the other: expected one")
    opened = beginnings[0] if beginnings else None
    if opened is None:
        raise UsageError(f"no run in {path}: expected its first line to say what was asked; the run has to be repeated")
    ends = [line for line in lines if isinstance(line, Closed | Resumed)]
    closed = ends[-1] if ends and isinstance(ends[-1], Closed) else None  # and not taken up again
    verdicts = in_order(_verdicts(lines, opened.cases), opened.cases)
    named_once(verdicts, path)
    # What ended with 0 does so no longer where the verdict of a case was lost.
    judged = exit_code(verdicts, opened.run.min_executed, interrupted=False, harness_failed=False)
    return Report(
        run=opened.run,
        environment=next((line.environment for line in lines if isinstance(line, Seen)), Environment()),
        tally=tally(verdicts),
        coverage=coverage(verdicts),
        pairs=together(verdicts),
        verdicts=verdicts,
        seconds=closed.seconds if closed else sum(verdict.seconds for verdict in verdicts),
        exit_code=(closed.exit_code or judged) if closed else _INTERRUPTED,
    )


def _verdicts(lines: list[JournalLine], asked: list[str]) -> list[Verdict]:
    """One a case: the last that was written; of a case that was only started, or only asked for, that it is open."""
    verdicts: dict[str, Verdict] = {}
    for line in lines:
        if isinstance(line, Started):
            verdicts[line.case] = _untested(line.case, line.axes, _CUT_OFF)
        if isinstance(line, Finished):
            verdicts[line.verdict.case] = line.verdict
    for case in asked:
        if case not in verdicts:
            verdicts[case] = _untested(case, _axes(case), _NEVER_RUN)
    return list(verdicts.values())


def _untested(case: str, axes: dict[str, str | int], why: str) -> Verdict:
    finding = Finding(slot="case", outcome=Outcome.UNTESTED, why=why)
    return Verdict(case=case, axes=axes, outcome=Outcome.UNTESTED, findings=[finding])


def _axes(case: str) -> dict[str, str | int]:
    """Every axis of a case that the journal only names; those of its id alone where this version has other axes."""
    try:
        return Case.parse(case).axes()
    except ValueError:
        provider, *named = case.split(":")
        pairs = (part.partition("=") for part in named)
        return {"provider": provider, **{name: value for name, _, value in pairs}}


def _record(
    raw: bytes,
    decode: Callable[[bytes], T],
    *,
    where: str,
    version: int = SCHEMA_VERSION,
    instead: str = _ANEW,
    oldest: int = _OLDEST,
) -> T:
    try:
        schema = msgspec.json.decode(raw, type=_Versioned).schema
        if oldest <= schema <= version:
            return decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"cannot read {where}: {shortened(error)}; expected a record as `gradcheck run` wrote it"
        ) from error
    if schema > version:
        instead = "a later one wrote it: update this one"
    raise UsageError(
        f"cannot read {where}: expected schema {version}, found {schema}; this gradcheck reads schema {version} only: "
        f"{instead}"
    )


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"cannot read {path}: {error}; expected a whole file, as gzip writes it") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; expected a file of `gradcheck run`"
        ) from error


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
