"""How does one matrix run under several versions of Transformer Engine? One run after the other, then one table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from gradcheck_cli import pipeline, unpacked
from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.judge.versions import side_by_side
from gradcheck_cli.records.report import Report, gravest_code
from gradcheck_cli.records.versions import Side, Versions
from gradcheck_cli.reporters import versions as told
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reporters.standard_output import complain
from gradcheck_cli.roots import without_roots
from gradcheck_cli.selection import Asked
from gradcheck_cli.unpacked import Unpacked

_INTERRUPTED = 130
_NOT_RUN = "the run was interrupted before it"


def run(asked: Asked, options: pipeline.RunOptions, typed: pipeline.Typed, te: Sequence[Path]) -> int:
    """An ordinary run; of several versions one each, in a folder of its own, and a table of them all."""
    versions = unpacked.every(te)
    if len(versions) < 2:
        return pipeline.run(_under(asked, versions), options, typed)
    if options.resume is not None:
        raise UsageError("--resume takes up one run: name one --te, and with --output its own folder, OUTPUT/VERSION")
    asked, selected = pipeline.prepared(_under(asked, versions), options)
    base = options.output or pipeline.default_folder(datetime.now(timezone.utc), selected)
    _require_new(base, versions)
    each = msgspec.structs.replace(options, last_failed=None)
    sides, reports = _run_each(asked, each, typed, (base, versions))
    if not reports:
        raise HarnessError("no version could be run; what each of them said stands above")
    return _tell(sides, reports, base)


def _under(asked: Asked, versions: Sequence[Unpacked]) -> Asked:
    return msgspec.structs.replace(asked, te=versions[0] if versions else None)


def _require_new(base: Path, versions: Sequence[Unpacked]) -> None:
    """UsageError before the first run, and not before the last, where a folder or the table is there already."""
    for path in (*(base / one.version for one in versions), base / told.JSON, base / told.MARKDOWN):
        if path.exists():
            raise UsageError(f"{path} is there already, and stays as it is: name another folder with --output")


def _run_each(
    asked: Asked, options: pipeline.RunOptions, typed: pipeline.Typed, where: tuple[Path, Sequence[Unpacked]]
) -> tuple[list[Side], dict[str, Report]]:
    """One run for each version, until one is interrupted; one that cannot run is told of, and the next is run."""
    base, versions = where
    sides: list[Side] = []
    for one in versions:
        if any(side.exit_code == _INTERRUPTED for side in sides):
            sides.append(Side(version=one.version, failure=_NOT_RUN))
            continue
        told.heading(one.version, f"{len(sides) + 1} of {len(versions)}", open_console())
        own = msgspec.structs.replace(options, output=base / one.version)
        code, failure = 0, ""
        try:
            code = pipeline.run(msgspec.structs.replace(asked, te=one), own, typed)
        except HarnessError as error:
            complain(f"Transformer Engine {one.version}: {error}")
            # The first line; the others hold paths of this machine.
            code, failure = error.exit_code, without_roots(str(error).partition("\n")[0], str(one.folder))
        sides.append(Side(version=one.version, exit_code=code, failure=failure))
    return sides, _reports(base, sides)


def _reports(base: Path, sides: Sequence[Side]) -> dict[str, Report]:
    """What each run left; one whose worker never started judged nothing, and has none."""
    reports = {}
    for side in sides:
        with suppress(UsageError):
            report = read(base / side.version)
            if not side.failure or report.tally.executed:
                reports[side.version] = report
    return reports


def _tell(sides: Sequence[Side], reports: dict[str, Report], base: Path) -> int:
    rows, same = side_by_side(reports)
    found = Versions(
        run=next(iter(reports.values())).run,
        sides=[
            msgspec.structs.replace(side, tally=report.tally, environment=report.environment)
            if (report := reports.get(side.version))
            else side
            for side in sides
        ],
        rows=rows,
        same=same,
        exit_code=gravest_code(side.exit_code for side in sides if side.exit_code is not None),
    )
    write_whole(base / told.JSON, told.json(found))
    write_whole(base / told.MARKDOWN, told.markdown(found))
    told.show(found, base, open_console())
    return found.exit_code
