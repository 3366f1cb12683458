"""What would make a known file true of a run? Entries for what is new there, and none for what is mended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import msgspec

from gradcheck_cli import known_file, plugins
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge.covering import covering
from gradcheck_cli.judge.known import Known, applies, architecture, failures, says_something, whole
from gradcheck_cli.known_editing import appended, without, written
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.failure import failure_of, named
from gradcheck_cli.records.known import VERSIONED, Complaint, KnownFailure, Placed
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Finding, Verdict
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reporters.read import environments, read
from gradcheck_cli.reporters.summary import reproducer

_DAYS = 90

Failure = tuple[str, str, str, str, str]


class Proposal(Record, frozen=True, kw_only=True):
    """What no run can know of a failure."""

    link: str = ""
    owner: str = ""
    expires: date | None = None


def add(folder: Path, name: str, asked: Proposal, *, write: bool) -> list[str]:
    """Entries for the failures of a run that the file does not know, in words; with `write` they are in the file."""
    today = datetime.now(timezone.utc).date()
    if asked.expires and asked.expires < today:
        raise UsageError(f"--expires {asked.expires}: expected a day that is not past, and it is {today}")
    path = known_file.locate(name)
    text = known_file.read(path) if path.exists() else ""
    shown = known_file.shown(path)
    run = placed(folder, read(folder))
    judge = Known(known_file.parse(text, shown))
    unknown = [one for one in run if says_something(one.verdict) and not judge.marked(one).green]
    entries = [_entry(failure, run, unknown, asked) for failure in dict.fromkeys(_all_failures(unknown))]
    if not entries:
        return [f"nothing to add: every failure of {folder} is known to {shown}, or there is none"]
    lines = [line for entry in entries for line in (*written(entry).splitlines(), "")]
    if not all(entry.versions for entry in entries):
        lines.append("# an entry without versions holds for every one: the run tells none that an entry can name")
    if not write:
        return [*lines, f"# to append this to {shown}: --write, with --link and --owner"]
    if not (asked.link.strip() and asked.owner.strip()):
        raise UsageError("--write: expected --link and --owner as well: who looks after this failure, and where?")
    _write(path, appended(text, entries, shown))
    return [*lines, f"# appended to {shown}"]


def prune(folder: Path, name: str, *, write: bool) -> list[str]:
    """The entries that a run shows to be mended or without a case, in words; with `write` they are out of the file."""
    entries = known_file.load(name)
    path = known_file.locate(name)
    report = read(folder)
    run = placed(folder, report)
    today = datetime.now(timezone.utc).date()
    told = Known(entries).complaints(run, whole=whole(report.run, report.verdicts), today=today)
    gone = [entry for entry in entries if _is_over(entry, told, run)]
    for_good = {entry.place for entry in gone}
    lines = [f"remove {one.place}: {one.why}" for one in told if one.place in for_good]
    lines += [f"keep {one.place}: {one.why}" for one in told if one.place not in for_good]
    elsewhere = [entry for entry in entries if not any(applies(entry, one.environment) for one in run)]
    lines += [f"keep {one.place}: it is about {_where(one)}, and no case ran there" for one in elsewhere]
    if not gone:
        return [*lines, f"nothing to prune: {folder} shows no entry of {path} to be mended or without a case"]
    if not write:
        return [*lines, f"to remove {len(gone)} of {len(entries)} entries: --write"]
    _write(path, without(known_file.read(path), gone, known_file.shown(path)))
    return [*lines, f"removed {len(gone)} of {len(entries)} entries from {known_file.shown(path)}"]


def placed(folder: Path, report: Report) -> list[Placed]:
    """The verdicts of a run as they were recorded, each with where it was reached."""
    where = environments(folder)
    return [
        Placed(case=_case(one, folder), verdict=one, environment=where.get(one.case, report.environment))
        for one in report.verdicts
    ]


def _where(entry: KnownFailure) -> str:
    """`transformer-engine >=2.14,<2.19 and sm90`: where an entry applies."""
    versions = [f"{name} {text}" for name, text in entry.versions.items()]
    return " and ".join([*versions, *([" or ".join(entry.architecture)] if entry.architecture else [])])


def _is_over(entry: KnownFailure, told: Sequence[Complaint], run: Sequence[Placed]) -> bool:
    """Whether no case fails any more as the entry says; in another way is a matter for somebody to look at."""
    kinds = {complaint.kind for complaint in told if complaint.place == entry.place}
    still = any(Known([entry]).marked(one).known for one in run)
    return bool(kinds & {"mended", "unmatched"}) and "different" not in kinds and not still


def _all_failures(run: Sequence[Placed]) -> list[Failure]:
    return [_failure(one, finding) for one in run for finding in failures(one.verdict)]


def _failure(one: Placed, finding: Finding) -> Failure:
    """What makes findings one failure, of one provider, as an entry names it."""
    of_role = finding.role if finding.role in ROLES else ""
    return one.case.provider, finding.outcome.value, of_role, named(finding.diagnosis), failure_of(finding).said


def _entry(failure: Failure, run: Sequence[Placed], unknown: Sequence[Placed], asked: Proposal) -> KnownFailure:
    inside = [one for one in unknown if failure in _all_failures([one])]
    # What was refused says nothing, and may be on either side.
    outside = [one for one in run if says_something(one.verdict) and failure not in _all_failures([one])]
    finding = next(found for found in failures(inside[0].verdict) if _failure(inside[0], found) == failure)
    cases = f"{len(inside)} case{'' if len(inside) == 1 else 's'}, the first: {reproducer(inside[0].verdict.case)}"
    text = {
        "place": "",
        "line": 0,
        "expression": covering([one.case for one in inside], [one.case for one in outside]),
        "outcome": finding.outcome.value,
        "role": failure[2] or None,
        "diagnosis": failure[3],
        "message": failure[4],
        "versions": _versions(inside[0]),
        "architecture": list(dict.fromkeys(architecture(one.environment) for one in inside)),
        "link": asked.link.strip() or known_file.TO_FILL_IN,
        "owner": asked.owner.strip() or known_file.TO_FILL_IN,
        "expires": asked.expires or datetime.now(timezone.utc).date() + timedelta(days=_DAYS),
        "note": cases,
    }
    return msgspec.convert(text, KnownFailure)


def _versions(one: Placed) -> dict[str, str]:
    """The candidate's own version, as far as an entry can name it: no more is known than that it fails there."""
    distribution = plugins.candidate(one.case.provider).distribution
    version = one.environment.versions.get(VERSIONED.get(distribution, ""), "").partition("+")[0]
    return {distribution: f"=={version}"} if version else {}


def _case(verdict: Verdict, folder: Path) -> Case:
    try:
        return Case.of(verdict.axes)
    except ValueError as error:
        raise UsageError(f"cannot read {verdict.case} of {folder}: {error}; use the gradcheck that wrote it") from error


def _write(path: Path, text: str) -> None:
    if Path(__file__).parent in path.parents:
        raise UsageError(
            f"cannot change {path}: expected a file of yours, found the one that was installed with gradcheck; "
            f"copy it, and name the copy with --known"
        )
    write_whole(path, text, "name another with --known")
