"""Which case or mutant catches each public report, or why does none? A document, written from `cases/bugs/`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.public import PublicReport, Recorded
from gradcheck_cli.reporters.marks import code, escaped, row

FILE = "reports/public_record.md"
HEAD = ["report", "symptom", "hit", "mended", "caught by", "found as", "what the variant stands for without having it"]


def text(reports: Sequence[PublicReport]) -> str:
    """The document: the count first, then the reports that are caught, then those that are not."""
    caught, others = [one for one in reports if one.case], [one for one in reports if not one.case]
    out_of_reach = [[*_who(one), escaped(one.hit), escaped(one.fixed), escaped(one.out_of_reach)] for one in others]
    return "\n".join(
        [
            "# Public gradient bugs, and what catches each",
            "",
            *_counted(reports),
            "",
            *_FROM,
            "",
            row(HEAD),
            row(["---"] * len(HEAD)),
            *(row(_caught(one)) for one in caught),
            "",
            "## Caught by nothing",
            "",
            row([*HEAD[:4], "why"]),
            row(["---"] * 5),
            *map(row, out_of_reach),
            "",
        ]
    )


_FROM = (
    "`python -m gradcheck_cli.matrices.public_record` writes this from `cases/bugs/`, where the right layer under the",
    "same axes stands as well. Where the layer of a report shows it by itself, the versions are those in which a run",
    "under `reports/` has seen it; torch's are seen by the tests.",
)


def _counted(reports: Sequence[PublicReport]) -> list[str]:
    caught = [one for one in reports if one.case]
    plain = [one for one in caught if not one.lacks]
    themselves = [one.name.upper() for one in caught if any(map(_shown_by_itself, one.case))]
    return [
        f"Of {len(reports)} reports {len(caught)} are caught, each by a fault of its class that",
        "`gradcheck run --matrix bugs` finds:",
        "",
        f"- {len(plain)} in a faulty variant that is called as the report says;",
        f"- {len(caught) - len(plain)} by the fault alone: what of the report's trigger the variant has not, for want",
        "  of the hardware or of an axis, is named in the last column, and nothing is shown of a run that has it.",
        "",
        f"{len(reports) - len(caught)} are caught by nothing; the second table says why. {len(themselves)} were seen",
        f"in the layer of the report itself as well: {', '.join(themselves)}.",
    ]


def _shown_by_itself(one: Recorded) -> bool:
    return one.part == "upstream" and not one.outcome.green


def _caught(one: PublicReport) -> list[str]:
    faulty = [it for it in one.case if it.part == "faulty"]
    itself = [it for it in one.case if _shown_by_itself(it)]
    by = [name for it in faulty for name in (_put_into(it) or [code(it.case)])]
    found = [escaped("noticed" if it.mutants else it.said) for it in faulty for _ in it.mutants or [it.case]]
    by += [f"{code(it.case)}, {_where(it)}" for it in itself]
    found += [escaped(it.said) for it in itself]
    return [*_who(one), escaped(one.hit), escaped(one.fixed), "<br>".join(by), "<br>".join(found), escaped(one.lacks)]


def _put_into(one: Recorded) -> list[str]:
    return [f"{code(mutant)} put into {code(one.case)}" for mutant in one.mutants]


def _where(one: Recorded) -> str:
    return escaped(", ".join(f"{name} {specifier}" for name, specifier in one.versions.items()))


def _who(one: PublicReport) -> list[str]:
    links = [f"[{escaped(_short(link))}]({link})" for link in one.links]
    return [f"{one.name.upper()} {' '.join(links)}", escaped(one.title)]


def _short(link: str) -> str:
    """`TransformerEngine#3234` of an issue or a pull request of that number."""
    *_, project, kind, number = link.split("/")
    return f"{project}@{number}" if kind == "commit" else f"{project}#{number}"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else FILE)
    target.write_text(text(matrix.public_reports()), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
