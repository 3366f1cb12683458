"""What is markup in what a reporter wrote? Each form through its own parser: AssertionError where any is foreign."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from markdown_it import MarkdownIt
from rich.console import Console

from gradcheck_cli.judge.difference import difference
from gradcheck_cli.judge.rules import explain
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters import csv_pandas, junit, markdown, picture, report_json, rules
from gradcheck_cli.reporters import difference as of_difference
from gradcheck_cli.reporters.clean_console import CleanConsole
from gradcheck_cli.reporters.console import ConsoleReporter
from gradcheck_cli.reporters.github import workflow_commands

# What a report is made of in Markdown; of HTML it has folded lists alone.
_MARKDOWN = {"h1", "h2", "p", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "br"}
_FOLDED = {"details", "summary"}
_SVG = {"svg", "style", "defs", "clipPath", "rect", "text", "circle", "g"}
_JUNIT = {"testsuites", "testsuite", "properties", "property", "testcase", "failure", "error", "skipped"}
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FORMULA = re.compile(r"[=+@\t\r-]")


class _Tags(HTMLParser):
    """The elements of a page, and every attribute."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_comment(self, data: str) -> None:
        """A comment hides what stands in it."""
        self.tags.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        """So may a declaration."""
        self.tags.append(f"<!{decl}")

    def handle_pi(self, data: str) -> None:
        """Or an instruction."""
        self.tags.append(f"<?{data}")


def of_markdown(text: str) -> None:
    """No link, picture, emphasis or HTML but what the report itself has."""
    page = _Tags()
    page.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))
    page.close()
    assert set(page.tags) <= _MARKDOWN | _FOLDED, set(page.tags) - _MARKDOWN - _FOLDED
    assert page.tags.count("details") <= 1
    assert page.tags.count("h1") == 1
    assert not page.attributes
    assert not _UNSEEN.search(text)


def of_svg(text: str) -> None:
    """XML of shapes and words, without scripts, links or handlers of events."""
    root = ET.fromstring(text)  # noqa: S314  what is parsed was written here
    for element in root.iter():
        assert element.tag.rpartition("}")[2] in _SVG, element.tag
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name]


def of_junit(text: str) -> None:
    """XML of testcases."""
    assert {element.tag for element in ET.fromstring(text).iter()} <= _JUNIT  # noqa: S314


def of_csv(text: str, verdicts: int) -> None:
    """As many rows as cases, all as long as the head; no cell that a spreadsheet would compute."""
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    assert len(rows) == verdicts
    assert {len(row) for row in rows} <= {len(head)}
    for cell in {cell for row in (head, *rows) for cell in row if _FORMULA.match(cell)}:
        float(cell)
    assert not _UNSEEN.search(text)


def of_terminal(show: Callable[[Console], None]) -> None:
    """Words and colours: nothing moves the cursor, names the window, or makes a link."""
    for terminal in (False, True):
        out = io.StringIO()
        show(CleanConsole(file=out, width=100, force_terminal=terminal, color_system="standard" if terminal else None))
        text = out.getvalue()
        found = _UNSEEN.search(_COLOUR.sub("", text) if terminal else text)
        assert not found, f"{found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}"


def of_github(lines: list[str]) -> None:
    """One command a line."""
    for line in lines:
        assert re.match(r"::(error|warning) title=[^,:\n\r]*::[^\n\r]*\Z", line), line
        assert not _UNSEEN.search(line)


def of_report(report: Report) -> None:
    """All of it: every reporter, and every command that tells of a run."""
    of_markdown(markdown.text(report))
    of_svg(picture.text(report))
    of_junit(junit.text(report))
    of_csv(csv_pandas.text(report), len(report.verdicts))
    assert from_json(report_json.text(report), Report) == report
    of_terminal(lambda console: ConsoleReporter(console, None).closed(report))
    of_github(workflow_commands(report))
    explained, changed = explain(report), difference(report, report, {})
    of_terminal(lambda console: rules.show(explained, "text", console))
    of_terminal(lambda console: of_difference.show(changed, "table", console))
    of_markdown(rules.markdown(explained))
    of_markdown(of_difference.markdown(changed))
