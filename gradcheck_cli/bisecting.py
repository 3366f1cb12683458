"""Between which versions of Transformer Engine did a case break, and between which was it mended?"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from gradcheck_cli import __version__, plugins, reproducing, selection, unpacked
from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.judge.bisection import changes, search
from gradcheck_cli.judge.versions import same
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.versions import Bisection, Tried
from gradcheck_cli.reporters import bisection as told
from gradcheck_cli.reporters.console import open_console, require_printed
from gradcheck_cli.unpacked import Unpacked

FINDINGS, NOTHING_EXECUTED = 1, 5  # the same under every version


class Options(NamedTuple):
    """How the versions are run."""

    device: str = ""
    timeout: float = 60.0
    everything: bool = False


def bisect(text: str, te: Sequence[Path], options: Options, form: str) -> int:
    """Run as few versions as it takes, and tell what changed between them; 0 where something did, or all are right."""
    told.require(form)
    case, console, began = _case(text), open_console(), time.monotonic()
    versions = unpacked.every(te)
    if len(versions) < 2:
        raise UsageError(f"--te: expected two versions or more, found {len(versions)}; name each: --te PATH --te PATH")
    tried: dict[str, Tried] = {}

    def result(index: int) -> Hashable:
        one = versions[index]
        told.step(f"running {case} under Transformer Engine {one.version}")
        tried[one.version] = _tried(case, one, options)
        return same(tried[one.version].verdict)

    search(len(versions), result, everything=options.everything)
    in_order = [tried[one.version] for one in versions if one.version in tried]
    changed = changes([(one.version, one.verdict) for one in in_order])
    beside = {version for change in changed for version in (change.old, change.new)}
    for one in [one for one in versions if one.version in beside]:
        told.step(f"running it once more under Transformer Engine {one.version}")
        _require_again(case, tried[one.version], _tried(case, one, options))
    found = Bisection(
        gradcheck=__version__,
        case=str(case),
        versions=[one.version for one in versions],
        tried=list(tried.values()),
        changes=changed,
        not_run=[one.version for one in versions if one.version not in tried],
        seconds=time.monotonic() - began,
    )
    told.show(found, form, console)
    require_printed(console)
    return _exit_code(found)


def _case(text: str) -> Case:
    """A case whose layer is built by Transformer Engine, and that no constraint leaves out; else UsageError."""
    case = selection.parse(text)
    left_out = matrix.excluded(case, named=True)
    if left_out:
        raise UsageError(f"expected a case that can run; {case} is excluded by {left_out.constraint}: {left_out.why}")
    selection.require_te([plugins.candidate(case.provider)])
    return case


def _tried(case: Case, te: Unpacked, options: Options) -> Tried:
    try:
        with reproducing.bench(case, options.device, options.timeout, te) as on:
            return Tried(version=te.version, verdict=on.judged(case), environment=on.environment)
    except HarnessError as error:
        raise HarnessError(
            f"Transformer Engine {te.version} cannot be run here, and says neither right nor wrong: leave it out, "
            f"or mend this first.\n{error}"
        ) from error


def _require_again(case: Case, first: Tried, second: Tried) -> None:
    """HarnessError where a version gives two results: what comes and goes there is no change between versions."""
    if same(first.verdict) != same(second.verdict):
        raise HarnessError(
            f"Transformer Engine {first.version} makes something else of {case} each time: {told.result(first)}; and "
            f"once more {told.result(second)}. That is no change between versions: run it there several times, "
            f"gradcheck run --case '{case}' --te ..., and report what comes and goes"
        )


def _exit_code(found: Bisection) -> int:
    outcome = found.tried[0].verdict.outcome
    if found.changes:
        return 0
    if not outcome.green:
        return FINDINGS
    return 0 if outcome.executed else NOTHING_EXECUTED
