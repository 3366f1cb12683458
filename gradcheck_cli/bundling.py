"""How does a finished run become a bug report and its archive? Explained, minimised, scripted, cleared, packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gradcheck_cli import context, packing, reproducing, selection
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.failure import Failure, failure_of, worst_failure
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import bundle as telling
from gradcheck_cli.reporters import issue
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reproduce import archive, tensors
from gradcheck_cli.reproduce.minimise import FLOORS, Budget
from gradcheck_cli.unpacked import Unpacked

BUDGET = Budget(300, 600.0, FLOORS["report"])
MOST_SCRIPTS = 3  # of the kinds of one fault


class Options(NamedTuple):
    """How a bundle is made."""

    device: str = ""
    timeout: float = 60.0
    no_run: bool = False
    output: Path | None = None
    te: Unpacked | None = None


def bundle(folder: Path, case: str, options: Options) -> int:
    """Write `issue.md` and `bundle.zip`; 0. Every text in them was cleared of what is private."""
    report, console = read(folder), open_console()
    told, held = context.begun(report, case, folder), b""
    for one in told.known:
        telling.known(one)
    if not options.no_run:
        told, held = _reproduced(told, options, lambda said: telling.step(said, console))
    texts = packing.texts_of(folder)
    names = packing.names_of(texts, report)
    told = packing.cleared_told(told, names)
    files = {name: data.encode(errors="backslashreplace") for name, data in packing.files(told, texts, names).items()}
    if held:
        files[tensors.FILE] = held
    output = options.output or folder / "bundle"
    zipped = archive.packed(files)
    write_whole(output / issue.FILE, files[issue.FILE])
    write_whole(output / archive.BUNDLE, zipped)
    sizes = {output / issue.FILE: len(files[issue.FILE]), output / archive.BUNDLE: len(zipped)}
    telling.written(issue.title(told), sizes, console)
    return 0


def verify(path: Path) -> int:
    """Compare the hashes of a bundle; 1 where something differs."""
    found = archive.verify(path)
    telling.verified(path, found, open_console())
    return 1 if found.differences else 0


def _reproduced(told: issue.Told, options: Options, said: Callable[[str], None]) -> tuple[issue.Told, bytes]:
    """The same with what was run here: the smallest case, scripts, where; and the tensors of the failing script."""
    try:
        case = selection.parse(told.verdict.case)
        with reproducing.bench(case, options.device, options.timeout, options.te) as on:
            said(f"running {case}")
            failure = reproducing.red(on, case, recorded(told, told.verdict))
            said("looking for the smallest case that fails alike")
            small = reproducing.smallest(on, case, BUDGET, lambda _: None, failure)
            said(f"writing and running a script of {small.case}")
            shown = reproducing.script_of(on, selection.parse(small.case), wanted=failure)
            if small.case != told.verdict.case and not (shown.shows and shown.variant):
                # At the smallest sizes a layer may fail in every variant: what passes beside it is worth more.
                said(f"nothing passes beside it: writing and running a script of {case}")
                larger = reproducing.script_of(on, case, wanted=failure)
                shown = larger if larger.shows and (larger.variant or not shown.shows) else shown
            more = _more(on, told, shown.case, said) if shown.shows else []
            made = told._replace(minimised=small, scripted=shown, more=more, here=on.environment)
            return made, reproducing.tensors_of(shown, on.limit, on.first)
    except UsageError as error:
        raise UsageError(f"{error}\n--no-run makes a bundle of what the files say, without a script") from None


def _more(on: reproducing.Bench, told: issue.Told, shown: str, said: Callable[[str], None]) -> list[Scripted]:
    """A script of each further kind of the fault that fails here as well: as near to the one shown as it can be."""
    scripts = []
    for kind in issue.evidence(told).kinds()[1:MOST_SCRIPTS]:
        nearest = context.like(selection.parse(shown), told.verdict, kind[0])
        tried = [*([nearest] if nearest else []), selection.parse(kind[0].case)]
        wanted = recorded(told, kind[0])
        case = next((one for one in tried if _fails_alike(on, one, wanted)), None)
        if case:
            said(f"the same fault otherwise: writing and running a script of {case}")
            scripts.append(reproducing.script_of(on, case, wanted=wanted))
    return scripts


def recorded(told: issue.Told, verdict: Verdict) -> Failure | None:
    """What a script is to show of a case: what the rule is about, of however many failures."""
    finding = told.rule.shown_by(verdict)
    return failure_of(finding) if finding else None


def _fails_alike(on: reproducing.Bench, case: Case, wanted: Failure | None) -> bool:
    found = worst_failure(on.judged(case), wanted)
    return found is not None and wanted is not None and found.key == wanted.key
