"""How is a report written as JSON? As the record itself, indented so that two runs can be compared line by line."""

from __future__ import annotations

import msgspec

from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.report import Report


def text(report: Report) -> str:
    """`report.json`."""
    return msgspec.json.format(to_json(report), indent=2) + "\n"
