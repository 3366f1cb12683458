"""What does a run's folder say? Its report; where the run was cut off, as much as the journal holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
from gradcheck_cli.reporters import report_json
from gradcheck_cli.reporters.jsonl import JOURNAL, OBSERVATIONS, REPORT
from gradcheck_cli.reporters.lines_of_file import is_json, placed
from gradcheck_cli.reporters.sharing import Sharing
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
_decode_verdict: Callable[[bytes], Verdict] = msgspec.json.Decoder(Verdict).decode
_decode_observation: Callable[[bytes], Observation] = msgspec.json.Decoder(Observation).decode
_decode_line: Callable[[bytes], JournalLine] = msgspec.json.Decoder(JournalLine).decode

T = TypeVar("T")


class _Versioned(msgspec.Struct):
    schema: int


def read(folder: Path, sharing: Sharing | None = None) -> Report:
    """The report of a run; UsageError where the folder holds none that this version can read.

    Who reads several runs of the same cases may have them share what they have alike.
    """
    path, instead, sharing = folder / REPORT, folder / JOURNAL, sharing or Sharing()
    if paths.is_file(path):
        told = _by_verdict(path, sharing) or _whole(path, instead)
        if told:
            return unchanged(told, path)
        _say(f"{path} breaks off, or holds no JSON: what is told is what {instead} holds")
    if paths.is_file(instead):
        return _rebuilt(instead, sharing)
    raise UsageError(
        f"no run in {shortened(folder)}: expected {REPORT} or {JOURNAL} there, as `gradcheck run` writes them"
    )


def _whole(path: Path, instead: Path) -> Report | None:
    """A report in one piece; None where it is no JSON, and the journal may say more."""
    raw = _bytes(path)
    return _record(raw, _decode_report, where=str(path)) if is_json(raw) or not instead.is_file() else None


def _by_verdict(path: Path, sharing: Sharing) -> Report | None:
    """A report as `report_json` writes it, verdict by verdict; None where it is laid out otherwise, or wrong."""
    verdicts = []
    try:
        with path.open("rb") as file:
            head = b"".join(report_json.until(file, report_json.BEGIN))
            while (line := file.readline()) and line.startswith(report_json.ITEM):
                item = line + b"".join(report_json.until(file, *report_json.ITEM_ENDS))
                verdicts.append(sharing.verdict(_decode_verdict(item.rstrip(b",\n"))))
            left = _record(head + line + file.read(), _decode_report, where=str(path))
    except (EOFError, OSError, UsageError, msgspec.DecodeError, RecursionError):
        return None
    return None if left.verdicts else msgspec.structs.replace(left, verdicts=verdicts)


@functools.cache  # a journal is read for more than one question, and spoken of once
def _say(what: str) -> None:
    complain(what)


def journal(path: Path) -> Iterator[JournalLine]:
    """The lines of a journal; one that holds no JSON is passed over, and told of where it is not the last."""
    for place, line in placed(path):
        if is_json(line):
            yield _record(line, _decode_line, where=place)
        else:
            _say(f"{place} breaks off, or holds no JSON: it is passed over, and what it said is not told")


def whole(path: Path) -> tuple[int, int]:
    """Where the last whole line of a journal ends, and how many bytes of an unfinished one stand behind it."""
    raw = _bytes(path)
    end = len(raw)
    while end and not (raw.endswith(b"\n", 0, end) and is_json(raw[raw.rfind(b"\n", 0, end - 1) + 1 : end])):
        end = raw.rfind(b"\n", 0, end - 1) + 1
    return end, len(raw) - end


def observations(folder: Path) -> Iterator[tuple[str, Observation]]:
    """Each observation of a run and the file and line where it stands; a file of them may be kept as `.gz`."""
    path = observations_file(folder)
    if path is None:
        raise UsageError(
            f"nothing to judge in {folder}: expected {OBSERVATIONS} or {OBSERVATIONS}.gz there, as `gradcheck run` "
            f"writes it; without it `gradcheck report` shows what the run concluded"
        )
    instead = f"record the run again to judge it; `gradcheck report {folder}` still shows what it concluded"
    for place, line in placed(path):
        yield place, _record(line, _decode_observation, place, OBSERVATION_VERSION, instead, OBSERVATION_VERSION)


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


def _rebuilt(path: Path, sharing: Sharing) -> Report:
    verdicts: dict[str, Verdict] = {}
    once: dict[type[JournalLine], list[Any]] = {Opened: [], Seen: [], Closed: [], Resumed: []}
    for line in journal(path):
        if isinstance(line, Started):
            verdicts[line.case] = sharing.verdict(_untested(line.case, line.axes, _CUT_OFF))
        elif isinstance(line, Finished):
            verdicts[line.verdict.case] = sharing.verdict(line.verdict)
        else:
            once[type(line)].append(line)
            once[Closed] = [] if isinstance(line, Resumed) else once[Closed]  # and not taken up again
    opened = _only(once[Opened], path)
    for case in opened.cases:
        if case not in verdicts:
            verdicts[case] = sharing.verdict(_untested(case, _axes(case), _NEVER_RUN))
    return _closed(opened, in_order(list(verdicts.values()), opened.cases), once, path)


def _only(beginnings: list[Opened], path: Path) -> Opened:
    """The one run that a journal tells of."""
    if len(beginnings) > 1:
        raise UsageError(f"{path} holds {len(beginnings)} runs, one after the other: expected one")
    if not beginnings:
        raise UsageError(f"no run in {path}: expected its first line to say what was asked; the run has to be repeated")
    return beginnings[0]


def _closed(opened: Opened, verdicts: list[Verdict], once: Mapping[type[JournalLine], list[Any]], path: Path) -> Report:
    named_once(verdicts, path)
    closed: Closed | None = next(reversed(once[Closed]), None)
    # What ended with 0 does so no longer where the verdict of a case was lost.
    judged = exit_code(verdicts, opened.run.min_executed, interrupted=False, harness_failed=False)
    return Report(
        run=opened.run,
        environment=next((line.environment for line in once[Seen]), Environment()),
        tally=tally(verdicts),
        coverage=coverage(verdicts),
        pairs=together(verdicts),
        verdicts=verdicts,
        seconds=closed.seconds if closed else sum(verdict.seconds for verdict in verdicts),
        exit_code=(closed.exit_code or judged) if closed else _INTERRUPTED,
    )


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
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; expected a file of `gradcheck run`"
        ) from error
