"""How is a fault reported to those who can mend it? In the fields of their bug template, filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.rule import Nearest, Rule
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters import issue_environment, issue_script, issue_title, markdown, summary
from gradcheck_cli.reporters import issue_words as words
from gradcheck_cli.reporters.issue_evidence import Evidence
from gradcheck_cli.reporters.issue_runs import cases, share
from gradcheck_cli.reporters.marks import code, escaped

FILE = "issue.md"
_FOLDED_FROM = 24  # lines of a table that would push the rest out of sight
_MOST_OTHERS = 12
_DISTRIBUTION = "gradcheck-cli"


class Recognised(NamedTuple):
    """A failure that was known before: where it is told, of which versions, and how many of the cases are it."""

    link: str
    where: str  # "transformer-engine >=2.14,<2.19, sm90"; "" for everywhere
    cases: int

    def __str__(self) -> str:
        return f"{self.link}{f' ({self.where})' if self.where else ''}"


class Told(NamedTuple):
    """Everything an issue is written from, with nothing private left in it."""

    report: Report
    rule: Rule
    others: list[Rule]  # of the same run
    verdict: Verdict  # of the case that stands for the rule
    minimised: Minimised | None = None
    scripted: Scripted | None = None
    more: Sequence[Scripted] = ()  # of the other kinds of the fault
    here: Environment | None = None  # where the scripts were run
    always: Mapping[str, str | int] = {}  # what the run never varied and is not the default
    near: Nearest | None = None  # the case that passed beside `verdict`
    known: Sequence[Recognised] = ()


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
    finding = told.rule.shown_by(told.verdict)
    return issue_title.title(told.rule, told.verdict.axes, finding.why if finding else "", told.always)


def evidence(told: Told) -> Evidence:
    """What the run says of the rule."""
    return Evidence(told.report, told.rule, told.verdict, told.always)


def _joined(told: Told, parts: list[Part]) -> str:
    blocks = [f"# {_heading(title(told))}"]
    for part in parts:
        blocks += [f"**{part.heading}**"] * bool(part.heading) + ["\n".join(part.lines)]
    return "\n\n".join(blocks) + "\n"


def _heading(text: str) -> str:
    """The title as it will be pasted, where nothing in it would be taken for a mark."""
    return (
        text
        if re.fullmatch(r"[\w .,:;()=!\"'%+/\[\]-]*", text) and not re.search(r"(?<!\w)_|_(?!\w)|\][\[(:]", text)
        else escaped(text)
    )


def _left_out(part: Part) -> Part:
    return part._replace(lines=[f"{part.name} is left out here, as the text would be too long; bundle.zip holds it."])


def _parts(told: Told) -> list[Part]:
    shown, where = evidence(told), told.here or told.report.environment
    # Transformer Engine asks for more than the plain fields that others are content with.
    of_te = told.verdict.axes.get("provider") == "te"
    steps = "Steps/Code to reproduce bug" if of_te else "To reproduce"
    return [
        Part("Describe the bug", _described(told, shown)),
        Part(steps, issue_script.steps(told.verdict.case, told.scripted, told.minimised, counted=_counted(told))),
        *(Part("", *one) for one in issue_script.parts(told.scripted, told.more)),
        Part("Expected behavior", shown.expected(told.near)),
        Part("Actual behavior", shown.actual()),
        Part("", _matrix(shown), 4, "The table of what ran"),
        *(_te_environment(where) if of_te else [Part("Versions", issue_environment.plain(where), 1, "Their list")]),
        Part("Additional context", _context(told, shown)),
        *([Part("", _elsewhere(told), 5, "What else failed")] if _differs(told) or told.others else []),
    ]


def _te_environment(where: Environment) -> list[Part]:
    return [
        Part("Environment overview (please complete the following information)", issue_environment.overview(where)),
        Part("Environment details", issue_environment.details(where), 1, "The list of versions"),
        Part("Device details", issue_environment.device(where)),
    ]


def _described(told: Told, shown: Evidence) -> list[str]:
    isolated = [] if told.scripted and told.scripted.shows and told.scripted.variant else shown.isolation(told.near)
    blocks = [
        [_known(one, told.rule) for one in told.known],
        [shown.head()],
        shown.kinds_in_words(),
        shown.consequence(),
        *([line] for line in [*shown.extent(), *isolated]),
    ]
    lines = [line for block in blocks if block for line in ("", *block)]
    return lines[1:]


def _counted(told: Told) -> bool:
    """Whether the text above the script holds numbers, which are those of a case of the run."""
    finding = told.rule.shown_by(told.verdict)
    return finding is not None and words.has_numbers(finding)


def _known(one: Recognised, rule: Rule) -> str:
    of = rule.failing if rule.found else len(rule.exceptions)
    share = "This failure is" if one.cases == of else f"{one.cases} of these {of} cases are"
    where = f", in {code(one.where)}" if one.where else ""
    return f"{share} known as {one.link}{where}: what is new belongs there."


def _matrix(shown: Evidence) -> list[str]:
    lines = shown.runs.table(shown.telling(), shown.rule.terms, issue_title.api(shown.red.axes))
    if len(lines) < _FOLDED_FROM:
        return lines
    return ["<details><summary>what ran</summary>", "", *lines, "", "</details>"]


def _context(told: Told, shown: Evidence) -> list[str]:
    run = told.report.run
    again = markdown.command_line(_without_output(run.command))
    home = _home()
    return [
        *shown.contrast(),
        f"- Written by gradcheck {escaped(run.gradcheck)}{f', {home}' if home else ''}: the harness that ran this, and "
        f"compares every gradient of a layer with one computed in fp64. The whole run again: {code(again)}.",
        "- `bundle.zip`, attached, has the report of every case, the journal, logs, scripts and, where small, the "
        "tensors of the failing one, with the hash of each file.",
    ]


def _home() -> str:
    """Where gradcheck is to be had, as its own metadata says; "" where that names no address."""
    try:
        found = metadata.metadata(_DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    return next((str(one).partition(",")[2].strip() for one in found if "http" in str(one)), "")


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
        lines += [f"- {_other(rule)}" for rule in told.others[:_MOST_OTHERS]]
        more = len(told.others) - _MOST_OTHERS
        lines += [f"- {more} more; report.json has all"] if more > 0 else []
    return lines


def _other(rule: Rule) -> str:
    said = words.prose(words.fault(rule.role, rule.outcome, rule.diagnosis))
    if not rule.found:
        return f"{said}, in {cases(len(rule.exceptions))}"
    met = " and ".join(words.term(term) for term in rule.terms)
    return f"{said}, in {share(rule.failing, rule.of)}{f' with {code(met)}' if met else ''}"
