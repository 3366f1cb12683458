"""What is concluded today of what a run saw then? Its observations, judged again and told as a run's report is."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from gradcheck_cli import known_file
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge.bounds import LAMBDA
from gradcheck_cli.judge.conclude import conclude, untested
from gradcheck_cli.judge.known import Known, whole
from gradcheck_cli.judge.public import PublicRecord
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.known import KnownFailure, Placed
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Report, exit_code, tally
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.formats import PRINTED, render
from gradcheck_cli.reporters.read import environments, observations, observations_file, read
from gradcheck_cli.reporters.sharing import Sharing


def judge(folder: Path, asked: float | None, known: str = "", formats: Sequence[str] = ("table",)) -> int:
    """Judge a run again, print it, and return the exit code of the verdicts."""
    for name in formats:
        if name not in PRINTED:
            raise UsageError(
                f"--format {name}: expected {' or '.join(PRINTED)}; a run's folder keeps what the run concluded, and "
                f"`gradcheck report` writes that in any format"
            )
    report = held_against(judged_again(folder, asked), folder, known) if known else judged_again(folder, asked)
    report = on_record(report, folder)
    render(report, formats, folder, open_console(), judged_from=observations_file(folder))
    return report.exit_code


def held_against(report: Report, folder: Path, known: str) -> Report:
    """The report with what was known of it, and what of that is no longer true."""
    entries: list[KnownFailure] = known_file.load(known)
    judge = Known(entries)
    placed = _placed(report, folder)
    verdicts = [judge.marked(one) for one in placed]
    today = datetime.now(timezone.utc).date()
    complaints = judge.complaints(placed, whole=whole(report.run, verdicts), today=today)
    floor = report.run.min_executed
    options = {**report.run.options, "--known": known_file.shown(known_file.locate(known))}
    return msgspec.structs.replace(
        report,
        run=msgspec.structs.replace(report.run, options=options),
        verdicts=verdicts,
        complaints=complaints,
        exit_code=exit_code(verdicts, floor, interrupted=False, harness_failed=False, complaints=complaints),
    )


def _placed(report: Report, folder: Path) -> list[Placed]:
    where = environments(folder)
    return [
        Placed(case=_case(one, folder), verdict=one, environment=where.get(one.case, report.environment))
        for one in report.verdicts
    ]


def on_record(report: Report, folder: Path) -> Report:
    """The report of a run of public reports, held against what is recorded of them now; any other as it is."""
    if not (reports := matrix.public_reports(report.run.matrix)):
        return report
    record = PublicRecord(reports)
    placed = _placed(report, folder)
    verdicts = [record.marked(one, one.verdict) for one in placed]
    reproduced, floor = record.told(placed), report.run.min_executed
    code = exit_code(
        verdicts,
        floor,
        interrupted=False,
        harness_failed=False,
        complaints=report.complaints,
        reproduced=reproduced,
    )
    return msgspec.structs.replace(report, verdicts=verdicts, reproduced=reproduced, exit_code=code)


def judged_again(folder: Path, asked: float | None = None) -> Report:
    """The run's report with every observation judged again; UsageError where a file is not that of a run."""
    lambda_ = allowed(asked)
    report = read(folder)
    where = environments(folder)
    before = {verdict.case: verdict for verdict in report.verdicts}
    sharing, judged = Sharing(), dict[str, Verdict]()
    for seen in _each_once(observations(folder), before, folder):
        environment = where.get(seen.case, report.environment)
        judged[seen.case] = sharing.verdict(conclude(_case(before[seen.case], folder), seen, environment, lambda_))
    verdicts = [judged.get(verdict.case) or _unseen(verdict, folder) for verdict in report.verdicts]
    options = report.run.options if asked is None else {**report.run.options, "--lambda": f"{lambda_:g}"}
    return msgspec.structs.replace(
        report,
        run=msgspec.structs.replace(report.run, options=options),
        verdicts=verdicts,
        tally=tally(verdicts),
        complaints=[],
        reproduced=[],
        exit_code=exit_code(verdicts, report.run.min_executed, interrupted=False, harness_failed=False),
    )


def allowed(asked: float | None) -> float:
    """The lambda to judge with: that of the run, or a stricter one. UsageError for any other; NaN is no number."""
    if asked is None:
        return LAMBDA
    if 0 <= asked <= LAMBDA:
        return asked
    raise UsageError(
        f"--lambda {asked:g}: expected a number from 0 to {LAMBDA:g}, with which the run looked at its errors; what "
        f"passed then was not looked at for more, and a laxer one would only hide what the run found"
    )


def _each_once(
    read_from: Iterable[tuple[str, Observation]], asked: Container[str], folder: Path
) -> Iterator[Observation]:
    """The observations, each of a case of the run, and one of each; none of them is kept."""
    seen: set[str] = set()
    for place, observation in read_from:
        if observation.case not in asked:
            raise UsageError(f"{place}: expected a case of the run in {folder}, found {observation.case!r}")
        if observation.case in seen:
            raise UsageError(f"{place}: expected one observation of each case, found a second of {observation.case}")
        seen.add(observation.case)
        yield observation


def _unseen(before: Verdict, folder: Path) -> Verdict:
    """The verdict on a case without an observation: what never came to run keeps its own, and nothing else does."""
    if before.outcome in (Outcome.EXCLUDED, Outcome.UNTESTED):
        return before
    why = f"expected the observation behind a verdict of {before.outcome.value}; found none in {folder}"
    return untested(_case(before, folder), why)


def _case(before: Verdict, folder: Path) -> Case:
    """The case by its axes as they were recorded: a default that has changed since must not change what is judged."""
    try:
        case = Case.of(before.axes)
    except ValueError as error:
        why = f"cannot judge {before.case} of {folder} again: {error}; it was recorded with other axes: record it again"
        raise UsageError(why) from error
    if str(case) != before.case:
        raise UsageError(
            f"cannot judge {before.case} of {folder} again: its axes are those of {case}; they were changed, or "
            f"written by a gradcheck with other defaults"
        )
    return case
