"""How is a report written as JSON? As the record itself, indented so that two runs can be compared line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import msgspec

from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.report import Report

# The lines around the verdicts and each of them: by these a reader finds them without holding the whole. No text in
# JSON has a newline of its own.
BEGIN = b'  "verdicts": [\n'
ITEM = b"    {"
ITEM_ENDS = (b"    }\n", b"    },\n")


def text(report: Report) -> str:
    """`report.json`."""
    return "".join(parts(report))


def parts(report: Report) -> Iterator[str]:
    """The same, one verdict after the other."""
    before, none, after = _indented(msgspec.structs.replace(report, verdicts=[])).partition('\n  "verdicts": []')
    yield before
    for number, verdict in enumerate(report.verdicts):
        yield ",\n" if number else f"\n{BEGIN.decode()}"
        yield "    " + _indented(verdict).replace("\n", "\n    ")
    yield "\n  ]" if report.verdicts else none
    yield f"{after}\n"


def until(file: IO[bytes], *last: bytes) -> Iterator[bytes]:
    """The lines up to one of these, it included; EOFError where there is none."""
    for line in file:
        yield line
        if line in last:
            return
    raise EOFError


def _indented(record: Record) -> str:
    return msgspec.json.format(to_json(record), indent=2)
