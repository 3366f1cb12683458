"""How is a fault reported to those who can mend it? The fields of Transformer Engine's bug template, filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Rule
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import issue_environment, issue_title, markdown, rules, summary
from gradcheck_cli.reporters.issue_evidence import Evidence
from gradcheck_cli.reporters.marks import code, escaped
from gradcheck_cli.reporters.plain_text import printable

FILE = "issue.md"
_FOLDED_FROM = 24  # lines of a table that would push the rest out of sight
_MOST_OUTPUT = 30
_NO_RUN = "No script was run for this report: it says what the files of the recorded run say."


class Told(NamedTuple):
    """Everything an issue is written from, with nothing private left in it."""

    report: Report
    rule: Rule
    others: list[Rule]  # of the same run
    verdict: Verdict  # of the case that stands for the rule
    minimised: Minimised | None = None
    scripted: Scripted | None = None
    here: Environment | None = None  # where the script was run


class Part(NamedTuple):
    """One field; where the whole is too long, the parts of the highest rank are left out, and named."""

    heading: str
    lines: list[str]
    rank: int = 0
    name: str = ""


def text(told: Told, limit: int = markdown.LIMIT) -> str:
    """`issue.md`: the title, then every field of the template; at most as long as GitHub accepts."""
    parts = _parts(told)
    whole = _joined(told, parts)
    for rank in sorted({part.rank for part in parts if part.rank}, reverse=True):
        if len(whole) <= limit:
            break
        parts = [_left_out(part) if part.rank == rank else part for part in parts]
        whole = _joined(told, parts)
    return whole


def title(told: Told) -> str:
    """The title alone."""
    return issue_title.title(told.rule, told.verdict.axes)


def _joined(told: Told, parts: list[Part]) -> str:
    blocks = [f"# {_heading(title(told))}"]
    for part in parts:
        blocks += [f"**{part.heading}**"] * bool(part.heading) + ["\n".join(part.lines)]
    return "\n\n".join(blocks) + "\n"


def _heading(text: str) -> str:
    """The title as it will be pasted, where nothing in it would be taken for a mark."""
    return (
        text
        if re.fullmatch(r"[\w .,:;()=!\"+/-]*", text) and not re.search(r"(?<!\w)_|_(?!\w)", text)
        else escaped(text)
    )


def _left_out(part: Part) -> Part:
    return part._replace(lines=[f"{part.name} is left out here, as the text would be too long; bundle.zip holds it."])


def _parts(told: Told) -> list[Part]:
    evidence, where = Evidence(told.report, told.rule), told.here or told.report.environment
    return [
        Part("Describe the bug", [evidence.condition(told.verdict.axes), "", *evidence.arrival()]),
        Part("", evidence.isolation(), 3, "How it was isolated"),
        Part("Steps/Code to reproduce bug", _steps(told)),
        *_script(told),
        Part("Expected behavior", evidence.expected()),
        Part("Actual behavior", evidence.actual()),
        Part("", _matrix(told.report), 4, "The table of the whole matrix"),
        Part("Environment overview (please complete the following information)", issue_environment.overview(where)),
        Part("Environment details", issue_environment.details(where), 1, "The list of versions"),
        Part("Device details", issue_environment.device(where)),
        Part("Additional context", _context(told, evidence)),
        *([Part("", _elsewhere(told), 5, "What else failed")] if _differs(told) or told.others else []),
    ]


def _steps(told: Told) -> list[str]:
    lines, shown = [], told.scripted
    small = (
        told.minimised if told.minimised and not (shown and shown.shows and shown.case != told.minimised.case) else None
    )
    case = small.case if small else told.verdict.case
    if shown and shown.shows:
        lines += [
            f"The script below {escaped(shown.in_words)}, each time in a fresh process. It ends with exit code 1."
        ]
    elif shown:
        lines += [f"No script shows this without gradcheck: {escaped(shown.why_not)}."]
    else:
        lines += [_NO_RUN]
    if small and small.asked != small.case:
        count = len(small.trail)
        lines += [f"It is the smallest case that fails alike; {count} were run on the way from {code(small.asked)}."]
    return [*lines, "", f"With gradcheck: {code(summary.reproducer(case))}"]


def _script(told: Told) -> list[Part]:
    shown = told.scripted
    if not shown or not shown.shows:
        return []
    output = printable(shown.output).splitlines()
    cut = ["..."] if len(output) > _MOST_OUTPUT else []
    said = ["It prints:", "", *_fenced([*cut, *output[-_MOST_OUTPUT:]], "text")]
    variant = f" {code('variant.py')} in the archive is the variant, {code(shown.variant)}." if shown.variant else ""
    return [
        Part("", _fenced(shown.script.rstrip("\n").splitlines(), "python"), 1, "The script, script.py,"),
        Part("", said + ["", variant.strip()] * bool(variant), 2, "Its output"),
    ]


def _fenced(lines: list[str], language: str) -> list[str]:
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return [f"{fence}{language}", *lines, fence]


def _matrix(report: Report) -> list[str]:
    lines = [line.replace("## ", "#### ", 1) if line.startswith("## ") else line for line in markdown.tables(report)]
    head = f"The whole run: {escaped(summary.headline(report.tally))}."
    if len(lines) < _FOLDED_FROM:
        return [head, "", *lines]
    return [head, "", "<details><summary>the full matrix</summary>", "", *lines, "", "</details>"]


def _context(told: Told, evidence: Evidence) -> list[str]:
    run = told.report.run
    lines = [*evidence.contrast(), f"- The rule behind it: {escaped(rules.sentence(told.rule))}."]
    if proved := summary.proof(told.report.verdicts):
        lines += [f"- That the comparison can fail was tried: {escaped(proved)}."]
    again = markdown.command_line(_without_output(run.command))
    lines += [
        f"- The whole run again: {code(again)} (gradcheck {escaped(run.gradcheck)}, run of {escaped(run.started)}).",
        "- `bundle.zip`, attached, has report, journal, logs, scripts and, where small, the tensors of the failing "
        "one; `gradcheck verify bundle.zip` compares their hashes.",
    ]
    return lines


def _without_output(command: Sequence[str]) -> list[str]:
    """A run does not write into the folder of another."""
    before = ["", *command]
    return [
        part
        for last, part in zip(before, command, strict=False)
        if last != "--output" and part.split("=")[0] != "--output"
    ]


def _differs(told: Told) -> bool:
    return told.here is not None and told.here.versions != told.report.environment.versions


def _elsewhere(told: Told) -> list[str]:
    lines = []
    if _differs(told):
        recorded = summary.environment_line(told.report.environment)
        lines += [f"The environment above is that of the script. The run was recorded on {escaped(recorded)}."]
    if told.others:
        lines += [*[""] * bool(lines), "What else failed in the same run, and is not spoken of here:", ""]
        lines += [f"- {escaped(rules.sentence(rule))}" for rule in told.others]
    return lines
