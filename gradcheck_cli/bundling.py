"""How does a finished run become a bug report and its archive? Explained, minimised, scripted, cleared, packed."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gradcheck_cli import reproducing, selection
from gradcheck_cli.errors import NothingSelected, UsageError
from gradcheck_cli.judge.rules import explain
from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Rule
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import bundle as telling
from gradcheck_cli.reporters import issue, report_json
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.files import write_whole
from gradcheck_cli.reporters.jsonl import JOURNAL
from gradcheck_cli.reporters.read import REPORT, read
from gradcheck_cli.reproduce import archive, private, tensors
from gradcheck_cli.reproduce.minimise import FLOORS, Budget

BUDGET = Budget(300, 600.0, FLOORS["report"])
_LONGEST_LOG = 1 << 20  # the last of it: a worker that repeats itself says no more with more

R = TypeVar("R", bound=Record)


class Options(NamedTuple):
    """How a bundle is made."""

    device: str = ""
    timeout: float = 60.0
    no_run: bool = False
    output: Path | None = None


class Reproduced(NamedTuple):
    """What was run for it, here."""

    minimised: Minimised
    scripted: Scripted
    environment: Environment
    tensors: bytes


def bundle(folder: Path, case: str, options: Options) -> int:
    """Write `issue.md` and `bundle.zip`; 0. Every text in them was cleared of what is private."""
    report, console = read(folder), open_console()
    red, rule = chosen(report, case, folder)
    made = None if options.no_run else _reproduced(red.case, options, lambda said: telling.step(said, console))
    texts = _texts(folder)
    names = private.names_in(_said(texts, report), here())
    told = _told(report, red.case, rule, made, names)
    files = {name: data.encode(errors="backslashreplace") for name, data in _files(told, texts, names).items()}
    if made and made.tensors:
        files[tensors.FILE] = made.tensors
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


def chosen(report: Report, case: str, folder: Path) -> tuple[Verdict, Rule]:
    """The red case that stands for a fault, and the rule that it is of; of the gravest where no case is named."""
    rules = explain(report).rules
    if not rules:
        raise NothingSelected(f"nothing to report: no case of {folder} failed, or none of those was seen to run")
    by_case = {verdict.case: verdict for verdict in report.verdicts}
    if not case:
        return by_case[rules[0].example], rules[0]
    wanted = str(selection.parse(case))
    red = by_case.get(wanted)
    if red is None:
        raise UsageError(
            f"--case {wanted}: expected a case of the run in {folder}; `gradcheck explain {folder}` names some"
        )
    rule = next((one for one in rules if _covers(one, red)), None)
    if rule is None:
        raise UsageError(f"--case {wanted}: expected a case that failed in {folder}, found {red.outcome.value}")
    return red, rule


def _covers(rule: Rule, verdict: Verdict) -> bool:
    shown = any(one.outcome is rule.outcome and one.slot.partition("[")[0] == rule.role for one in verdict.findings)
    if rule.exceptions:
        return shown and verdict.case in rule.exceptions
    return shown and all(verdict.axes.get(term.axis) in term.values for term in rule.terms)


def _reproduced(case: str, options: Options, said: Callable[[str], None]) -> Reproduced:
    parsed = selection.parse(case)
    try:
        with reproducing.bench(parsed, options.device, options.timeout) as on:
            said(f"running {case}")
            reproducing.red(on, parsed)
            said("looking for the smallest case that fails alike")
            small = reproducing.smallest(on, parsed, BUDGET, lambda _: None)
            said(f"writing and running a script of {small.case}")
            shown = reproducing.script_of(on, selection.parse(small.case), options.timeout)
            if small.case != case and not (shown.shows and shown.variant):
                # At the smallest sizes a layer may fail in every variant: what passes beside it is worth more.
                said(f"nothing passes beside it: writing and running a script of {case}")
                larger = reproducing.script_of(on, parsed, options.timeout)
                shown = larger if larger.shows and (larger.variant or not shown.shows) else shown
            return Reproduced(small, shown, on.environment, reproducing.tensors_of(shown, options.timeout))
    except UsageError as error:
        raise UsageError(f"{error}\n--no-run makes a bundle of what the files say, without a script") from None


def here() -> private.Names:
    """Whose machine this is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = ""
    host = socket.gethostname()
    hosts = {host, host.partition(".")[0]} - {""}
    return private.Names(frozenset({user} - {""}), frozenset(hosts), frozenset({str(Path.home())}))


def _texts(folder: Path) -> dict[str, str]:
    """The journal and the workers' logs, by name, as far as they are there."""
    files = [folder / JOURNAL, *sorted(folder.glob("worker-*.log"))]
    return {file.name: _text(file) for file in files if file.is_file()}


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror or error}; expected a file of `gradcheck run`"
        ) from error
    if file.suffix == ".log" and len(raw) > _LONGEST_LOG:
        raw = b"... (the beginning is left out)\n" + raw[-_LONGEST_LOG:]
    return raw.decode(errors="replace")


def _said(texts: dict[str, str], report: Report) -> Iterator[str]:
    """Everything that may give a name away, as it reads and not as JSON writes it."""
    yield from private.strings(msgspec.to_builtins(report))
    for text in texts.values():
        yield from text.splitlines()
        for line in text.splitlines():
            with suppress(msgspec.DecodeError):
                yield from private.strings(msgspec.json.decode(line))


def _told(report: Report, case: str, rule: Rule, made: Reproduced | None, names: private.Names) -> issue.Told:
    """The records that the issue is written from, cleared first: what is rendered of them is clean as well."""
    clear = cleared(report, names)
    red = next(verdict for verdict in clear.verdicts if verdict.case == case)
    rules = [cleared(one, names) for one in explain(report).rules if one != rule]
    told = issue.Told(report=clear, rule=cleared(rule, names), others=rules, verdict=red)
    if made is None:
        return told
    # A script must stay as it was run: of its words none is taken for a name.
    scripted = msgspec.structs.replace(
        cleared(made.scripted, names),
        script=private.without_marks(made.scripted.script, names),
        variant_script=private.without_marks(made.scripted.variant_script, names),
    )
    return told._replace(
        minimised=cleared(made.minimised, names), scripted=scripted, here=cleared(made.environment, names)
    )


def cleared(record: R, names: private.Names) -> R:
    """A record of the same kind without anything private."""
    plain: Any = private.cleared_json(msgspec.to_builtins(record), names)
    return msgspec.convert(plain, type(record))


def _files(told: issue.Told, texts: dict[str, str], names: private.Names) -> dict[str, str]:
    """Everything that the archive holds beside its hashes."""
    files = {REPORT: report_json.text(told.report), issue.FILE: issue.text(told)}
    places = {"recorded": told.report.environment, **({"script": told.here} if told.here else {})}
    files["environment.json"] = _indented({name: msgspec.to_builtins(place) for name, place in places.items()})
    for name, data in texts.items():
        files[name] = _journal(data, names) if name == JOURNAL else private.cleared(data, names)
    if told.minimised:
        files["minimised.json"] = msgspec.json.format(to_json(told.minimised), indent=2) + "\n"
    if told.scripted and told.scripted.shows:
        files["script.py"] = told.scripted.script
        if told.scripted.variant_script:
            files["variant.py"] = told.scripted.variant_script
    return files


def _journal(text: str, names: private.Names) -> str:
    """Each line as JSON again; the last of a run that was killed may be none, and is cleared as text."""
    return "".join(f"{_line(line, names)}\n" for line in text.splitlines())


def _line(line: str, names: private.Names) -> str:
    try:
        plain = private.cleared_json(msgspec.json.decode(line), names)
    except msgspec.DecodeError:
        return private.cleared(line, names)
    return msgspec.json.encode(plain).decode()


def _indented(value: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
