"""How is a report written for a CI server? JUnit XML: one testcase a case."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.reporters.plain_text import printable
from gradcheck_cli.reporters.summary import environment_facts, headline, reproducer, title

_SKIPPED = (Outcome.EXCLUDED, Outcome.REFUSED)
_ERRORS = (Outcome.RAISED, Outcome.TIMED_OUT, Outcome.CRASHED)


def text(report: Report) -> str:
    """`junit.xml`: EXCLUDED and REFUSED are skipped, a case that did not come back is an error, a finding a failure.

    A known failure is skipped too, which is how JUnit's readers show what is expected to fail: neither red nor green.
    What of the known file is not true is a failed testcase of its own.
    """
    tags = [*map(_tag, report.verdicts), *("failure" for _ in report.complaints)]
    counts = {
        "tests": str(len(tags)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
        "time": f"{report.seconds:.3f}",
    }
    suites = ET.Element("testsuites", {"name": "gradcheck", **counts})
    named = {"name": printable(title(report.run)), "timestamp": printable(report.run.started)}
    suite = ET.SubElement(suites, "testsuite", named | counts)
    _properties(suite, report)
    for verdict in report.verdicts:
        _testcase(suite, verdict)
    for complaint in report.complaints:
        named = {"classname": "known", "name": printable(complaint.place), "time": "0.000"}
        failed = ET.SubElement(suite, "testcase", named)
        ET.SubElement(failed, "failure", type=complaint.kind, message=printable(complaint.why))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _properties(suite: ET.Element, report: Report) -> None:
    properties = ET.SubElement(suite, "properties")
    facts = {
        **environment_facts(report.environment),
        **report.environment.variables,
        **{f"tally.{outcome}": str(count) for outcome, count in report.tally.outcomes.items()},
        "tally.asked": str(report.tally.asked),
        "tally.executed": str(report.tally.executed),
        "summary": headline(report.tally),
        "exit_code": str(report.exit_code),
    }
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=printable(name), value=printable(value))


def _testcase(suite: ET.Element, verdict: Verdict) -> None:
    names = [str(verdict.axes.get(axis, "")) for axis in ("provider", "api", "path")]
    classname = printable(".".join(name for name in names if name not in ("", "auto")))
    seconds = f"{verdict.seconds:.3f}"
    testcase = ET.SubElement(suite, "testcase", classname=classname, name=printable(verdict.case), time=seconds)
    tag = _tag(verdict)
    if not tag:
        return
    message = printable(verdict.worst.why if verdict.worst else verdict.outcome.value)
    if verdict.known:
        message = f"known failure {printable(verdict.known)}: {message}"
    element = ET.SubElement(testcase, tag, type=verdict.outcome.value, message=message)
    tried = [f"tried once more in a fresh worker: {verdict.retried.value}"] if verdict.retried else []
    said = [*map(_line, verdict.findings), *tried, f"run: {reproducer(verdict.case)}"]
    element.text = printable("\n".join(said))


def _tag(verdict: Verdict) -> str:
    outcome = verdict.outcome
    if outcome in _SKIPPED or verdict.known:
        return "skipped"
    if outcome in _ERRORS:
        return "error"
    return "" if outcome is Outcome.PASSED else "failure"


def _line(finding: Finding) -> str:
    said = f"{finding.outcome.value} {finding.slot}: {finding.why}"
    if finding.diagnosis:
        said += f" [{finding.diagnosis}]"
    return f"{said} (what would open it: {finding.unlock})" if finding.unlock else said
