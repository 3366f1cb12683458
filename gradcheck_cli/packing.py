"""What goes into a bundle? Every text of a run and of what was made of it, cleared of what is private."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.reporters import issue, issue_script, report_json
from gradcheck_cli.reporters.jsonl import JOURNAL, REPORT
from gradcheck_cli.reproduce import private

_LONGEST_LOG = 1 << 20  # the last of it: a worker that repeats itself says no more with more

R = TypeVar("R", bound=Record)


def here() -> private.Names:
    """Whose machine this is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = ""
    host = socket.gethostname()
    hosts = {host, host.partition(".")[0]} - {""}
    return private.Names(frozenset({user} - {""}), frozenset(hosts), frozenset({str(Path.home())}))


def texts_of(folder: Path) -> dict[str, str]:
    """The journal and the workers' logs, by name, as far as they are there; where a link leads is nobody's business."""
    files = [folder / JOURNAL, *sorted(folder.glob("worker-*.log"))]
    return {file.name: _text(file) for file in files if file.is_file() and not file.is_symlink()}


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


def names_of(texts: dict[str, str], report: Report) -> private.Names:
    """Whose names must go: this machine's, and those that the texts give away."""
    return private.names_in(_said(texts, report), here())


def _said(texts: dict[str, str], report: Report) -> Iterator[str]:
    """Everything that may give a name away, as it reads and not as JSON writes it."""
    yield from private.strings(msgspec.to_builtins(report))
    for text in texts.values():
        yield from text.splitlines()
        for line in text.split("\n"):
            with suppress(msgspec.DecodeError, RecursionError):
                yield from private.strings(msgspec.json.decode(line))


def cleared_told(told: issue.Told, names: private.Names) -> issue.Told:
    """What the issue is written from, cleared first: what is rendered of it is clean as well."""
    report = cleared(told.report, names)
    return told._replace(
        report=report,
        rule=cleared(told.rule, names),
        others=[cleared(one, names) for one in told.others],
        verdict=next(one for one in report.verdicts if one.case == told.verdict.case),
        minimised=cleared(told.minimised, names) if told.minimised else None,
        scripted=_script(told.scripted, names) if told.scripted else None,
        more=[_script(one, names) for one in told.more],
        here=cleared(told.here, names) if told.here else None,
    )


def _script(made: Scripted, names: private.Names) -> Scripted:
    """A script must stay as it was run: of its words none is taken for a name."""
    return msgspec.structs.replace(
        cleared(made, names),
        script=private.without_marks(made.script, names),
        variant_script=private.without_marks(made.variant_script, names),
        contrast_script=private.without_marks(made.contrast_script, names),
    )


def cleared(record: R, names: private.Names) -> R:
    """A record of the same kind without anything private."""
    plain: Any = private.cleared_json(msgspec.to_builtins(record), names)
    return msgspec.convert(plain, type(record))


def files(told: issue.Told, texts: dict[str, str], names: private.Names) -> dict[str, str]:
    """Everything that the archive holds beside its hashes."""
    packed = {REPORT: report_json.text(told.report), issue.FILE: issue.text(told)}
    places = {"recorded": told.report.environment, **({"script": told.here} if told.here else {})}
    packed["environment.json"] = _indented({name: msgspec.to_builtins(place) for name, place in places.items()})
    for name, data in texts.items():
        packed[name] = _journal(data, names) if name == JOURNAL else private.cleared(data, names)
    if told.minimised:
        packed["minimised.json"] = msgspec.json.format(to_json(told.minimised), indent=2) + "\n"
    if told.scripted and told.scripted.shows:
        packed["script.py"] = told.scripted.script
        if told.scripted.variant_script:
            packed["variant.py"] = told.scripted.variant_script
        if told.scripted.contrast_script:
            packed["contrast.py"] = told.scripted.contrast_script
        seen = [one.script for one in told.more if one.shows]
        packed |= {issue_script.name(number): text for number, text in enumerate(seen, 2)}
    return packed


def _journal(text: str, names: private.Names) -> str:
    """Each line as JSON again; the last of a run that was killed may be none, and is cleared as text."""
    # Alone a newline ends one: JSON may hold what else a text may be broken at.
    return "".join(f"{_line(line, names)}\n" for line in text.removesuffix("\n").split("\n"))


def _line(line: str, names: private.Names) -> str:
    try:
        plain = private.cleared_json(msgspec.json.decode(line), names)
    except (msgspec.DecodeError, RecursionError):
        return private.cleared(line, names)
    return msgspec.json.encode(plain).decode()


def _indented(value: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
