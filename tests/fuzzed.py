"""What must hold of any input at all? A right answer or gradcheck's own error: one property for each kind of input."""

from __future__ import annotations

import atexit
import functools
import gzip
import io
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import hostile
import hostile_reports
import markup
from hypothesis import strategies as st

from gradcheck_cli import known_file, listing, plugins, rejudging, selection, unpacked
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.expression import axes_named, compile_expression
from gradcheck_cli.judge.difference import difference
from gradcheck_cli.judge.rules import explain
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters import csv_pandas, junit, markdown, picture
from gradcheck_cli.reporters import read as reading
from gradcheck_cli.reporters import report_json as as_json
from gradcheck_cli.reporters.plain_text import printable
from gradcheck_cli.reproduce import archive

ROOT = Path(__file__).parent.parent
# Longer than any message that a person reads.
LONGEST = 8_000

RIGHT, REFUSED = "right", "refused"


def answered(act: Callable[[], None]) -> str:
    """Whether it was a right answer or a clear error; anything else that is raised is a fault, and goes on."""
    try:
        act()
    except GradcheckError as error:
        said = printable(str(error))
        assert len(said) <= LONGEST, f"a message of {len(said)} characters: {said[:200]}"
        return REFUSED
    return RIGHT


class Bench:
    """A folder that inputs are written to, emptied after each of them."""

    def __init__(self) -> None:
        self._whole = Path(tempfile.mkdtemp(prefix="gradcheck-fuzz-"))
        self.folder = self._whole / "in"
        self.folder.mkdir()

    def put(self, **files: bytes) -> Path:
        """These files and no others; a `_` of a name stands for the dot before its ending."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, content in files.items():
            (self.folder / ".".join(name.rsplit("_", 1))).write_bytes(content)
        return self.folder

    def untouched(self, before: set[str]) -> None:
        """Nothing was written anywhere near."""
        assert self.listed() == before

    def listed(self) -> set[str]:
        """Everything that lies there."""
        return {str(path) for path in self._whole.rglob("*")}

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._whole)


# A real run on plain torch, cut down to six of its cases, and what was seen of them without the mutants.
RECORDED = ROOT / "reports" / "torch-cpu"
REPORT: dict[str, Any] = json.loads((RECORDED / "report.json").read_bytes())
CASES = [verdict["case"] for verdict in REPORT["verdicts"]][::6]
REPORT["verdicts"] = [verdict for verdict in REPORT["verdicts"] if verdict["case"] in CASES]
REPORT["tally"] = {"asked": len(CASES), "executed": len(CASES), "outcomes": {"PASSED": len(CASES)}}
RUN_REPORT = json.dumps(REPORT).encode()
JOURNAL = [json.loads(line) for line in (RECORDED / "journal.jsonl").read_bytes().splitlines()]
JOURNAL = [line for line in JOURNAL if line.get("case", line.get("verdict", {}).get("case", CASES[0])) in CASES]
for line in JOURNAL:
    if line["event"] == "run":
        line["cases"] = CASES
with gzip.open(RECORDED / "observations.jsonl.gz") as file:
    SEEN = [one for one in map(json.loads, file) if one["case"] in CASES]
for one in SEEN:
    for channel in one["channels"]:
        channel["phases"] = [phase for phase in channel["phases"] if not phase.get("mutant")]
BUNDLE = archive.packed({"report.json": RUN_REPORT, "issue.md": b"text", "worker-1.log": b"log" * 99})
MATRICES = [path.read_bytes() for path in sorted((ROOT / "cases").glob("*.toml")) if path.stem != "known"]
KNOWN = [(ROOT / "cases" / "known.toml").read_bytes()]
COVER = b"# a cover\ntorch:api=loop\ntorch:api=loop:bias=1:dtype=fp32\nte:api=module\n"
METADATA = b"Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.17.1\nRequires-Dist: torch\n\ntext\n"


# ---- what is typed

TORCH = plugins.candidate("torch")
SOME = tuple(
    point for point in islice(matrix.enumerate_cases(matrix.load("full"), [TORCH], 0), 60) if isinstance(point, Case)
)


def case_id(text: str) -> None:
    """An id is read back as it is written, and its contract is told."""
    case = selection.parse(text)
    assert Case.parse(str(case)) == case
    if case.num_gemms <= 64:
        listing.contract(str(case))


def expression(text: str) -> None:
    """A test that says yes or no to every case, and depends on the axes that it names alone."""
    holds = compile_expression(text)
    assert {type(holds(case)) for case in SOME} == {bool}
    assert set(axes_named(text)) <= set(AXES)


def told_expression(pair: tuple[str, Callable[[dict[str, Any]], bool]]) -> None:
    """What was built of comparisons says of each case what they say."""
    text, holds = pair
    compiled = compile_expression(text)
    assert [compiled(case) for case in SOME] == [holds(case.axes()) for case in SOME]


def _comparison(axis: str, value: str, *, negated: bool) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    written = f'{axis} {"!=" if negated else "="} "{value}"'
    return written, lambda axes: (str(axes[axis]) == value) is not negated


def _joined(pairs: list[tuple[str, Callable[[dict[str, Any]], bool]]], word: str, *, negated: bool) -> Any:
    text = f" {word} ".join(text for text, _ in pairs)
    every = all if word == "and" else any
    return f"{'not ' * negated}({text})", lambda axes: every(holds(axes) for _, holds in pairs) is not negated


expressions: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(AXES[1:]).flatmap(
        lambda axis: st.builds(
            _comparison, st.just(axis), st.sampled_from(hostile.values_of(axis)), negated=st.booleans()
        )
    ),
    lambda inner: st.builds(
        _joined, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["and", "or"]), negated=st.booleans()
    ),
    max_leaves=6,
)


def shard(text: str) -> None:
    """A part of the whole."""
    whole = list(range(40))
    kept = list(selection.part(whole, text))
    assert set(kept) <= set(whole)


# ---- files


def matrix_file(bench: Bench, content: bytes) -> None:
    """Every case of it is enumerated once, and is read back from its id."""
    name = str(bench.put(m_toml=content) / "m.toml")
    points = [
        selection.case_of(one) for one in islice(selection.each(selection.Asked(matrix=name, provider=("torch",))), 300)
    ]
    assert len(set(points)) == len(points)
    assert all(Case.parse(str(case)) == case for case in points[:20])


def cover_file(bench: Bench, content: bytes) -> None:
    """The cases of a cover are those that it lists."""
    folder = bench.put(m_toml=b'[[block]]\ncover = 2\nbias = [0, 1]\ndtype = ["bf16", "fp32"]\n', m_cover=content)
    points = list(islice(matrix.enumerate_cases(matrix.load(str(folder / "m.toml")), [TORCH], 0), 300))
    assert len(set(points)) == len(points)


def known(bench: Bench, content: bytes) -> None:
    """Every entry stands on a line of the file."""
    entries = known_file.load(str(bench.put(k_toml=content) / "k.toml"))
    lines = content.count(b"\n") + 1
    assert all(1 <= entry.line <= lines for entry in entries)


def told(report: Report) -> None:
    """Every reporter takes it; that nothing becomes markup is asked in tests/hostile_reports.py."""
    for view in VIEWS.values():
        view(report)
    explain(report)
    difference(report, report, {})


def journal(bench: Bench, content: bytes) -> None:
    """A journal, whole or not, is a report that can be told."""
    folder = bench.put(journal_jsonl=content)
    told(reading.read(folder))
    reading.environments(folder)


def report_json(bench: Bench, content: bytes) -> None:
    """A report is what its parts say."""
    told(reading.read(bench.put(report_json=content)))


def observations(bench: Bench, content: bytes) -> None:
    """What was seen is judged, and no verdict is better than what it was judged by."""
    folder = bench.put(report_json=RUN_REPORT, observations_jsonl=content)
    report = rejudging.judged_again(folder)
    seen = {one.case for _, one in reading.observations(folder)}
    assert all(verdict.case in seen or verdict.outcome.value == "UNTESTED" for verdict in report.verdicts)


def compressed(bench: Bench, content: bytes) -> None:
    """The same where they are kept compressed."""
    list(reading.observations(bench.put(**{"observations.jsonl_gz": content})))


def archived(bench: Bench, content: bytes) -> None:
    """Whatever is not as it was written is noticed; nothing is unpacked."""
    path = bench.put(bundle_zip=content) / "bundle.zip"
    before = bench.listed()
    verified = archive.verify(path)
    bench.untouched(before)
    assert bool(verified.differences) is (content != BUNDLE)


def transformer_engine(bench: Bench, content: bytes) -> None:
    """A version is one of PEP 440."""
    folder = bench.put()
    (folder / "transformer_engine").mkdir()
    (folder / "transformer_engine-2.17.1.dist-info").mkdir()
    (folder / "transformer_engine-2.17.1.dist-info" / "METADATA").write_bytes(content)
    (found,) = unpacked.every([folder])
    assert found.version in content.decode(errors="replace")


def te_argument(text: str) -> None:
    """A folder, or not: no name is too strange to be told."""
    unpacked.every([Path(text)])


VIEWS: dict[str, Callable[[Report], str]] = {
    "json": as_json.text,
    "csv": csv_pandas.text,
    "junit": junit.text,
    "markdown": markdown.text,
    "svg": picture.text,
}


# ---- every kind of input, and who writes it


def lines_of(records: Any) -> bytes:
    """JSON lines."""
    return b"\n".join(json.dumps(record).encode() for record in records) + b"\n"


@st.composite
def zips(draw: st.DrawFn) -> bytes:
    """A zip of names that lead elsewhere, links, folders, twins, and hashes that may fit."""
    names = st.sampled_from(
        ["a", "a", "b/c", "/etc/x", "../x", "a/../../x", "C:\\x", "d/", "", "CON", "\u202e", "x" * 300]
    )
    buffer = io.BytesIO()
    files = draw(
        st.lists(st.tuples(names, st.binary(max_size=20), st.sampled_from([0o100644, 0o120777, 0o020666])), max_size=5)
    )
    how = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", how) as packed:
        warnings.simplefilter("ignore")
        for name, content, mode in files:
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            packed.writestr(member, content)
        said = archive.sums({name: content for name, content, _ in files})
        packed.writestr(archive.SUMS, said + draw(st.sampled_from(["", "", "x\n", f"{'0' * 64}  ../y\n"])))
    return buffer.getvalue()


raw = st.binary(max_size=400)
paths = st.one_of(st.text(max_size=20), st.sampled_from([str(leaf) for leaf in hostile.LEAVES])).filter(
    lambda text: "\0" not in text  # which no argument can hold
)
words = (*AXES, "=", "!=", "<", ">=", "in", "not", "and", "or", "(", ")", ",", "bf16", "1", "64,0,128", '"hot"')
deep = st.integers(1, 3000).flatmap(
    lambda n: st.sampled_from(["(" * n, "not " * n + "bias", "(" * n + "bias" + ")" * n, " or ".join(["bias"] * n)])
)
TYPED: dict[str, tuple[int, Callable[[Any], None], st.SearchStrategy[Any]]] = {
    "case ids": (20, case_id, st.one_of(hostile.ids(), hostile.ids(), st.text(max_size=60))),
    "expressions": (20, expression, st.one_of(hostile.texts(words), st.text(max_size=40), deep)),
    "expressions, evaluated": (10, told_expression, expressions),
    "shards": (10, shard, st.one_of(st.text(max_size=12), st.from_regex(r"[0-9]{1,12}/[0-9]{1,12}", fullmatch=True))),
    "--te arguments": (10, te_argument, paths),
    "reports with hostile words": (1, markup.of_report, hostile_reports.reports()),
}
FILES: dict[str, tuple[int, Callable[[Bench, bytes], None], st.SearchStrategy[bytes]]] = {
    "matrix files": (15, matrix_file, st.one_of(hostile.matrices(), hostile.mutated(*MATRICES), raw)),
    "covers": (10, cover_file, st.one_of(hostile.mutated(COVER), raw)),
    "known files": (15, known, st.one_of(hostile.mutated(*KNOWN), raw)),
    "journals": (
        3,
        journal,
        st.one_of(hostile.altered(JOURNAL).map(lines_of), hostile.mutated(lines_of(JOURNAL)), raw),
    ),
    "reports": (
        4,
        report_json,
        st.one_of(hostile.altered(REPORT).map(lambda it: json.dumps(it).encode()), hostile.mutated(RUN_REPORT), raw),
    ),
    "observations": (
        2,
        observations,
        st.one_of(hostile.altered(SEEN).map(lines_of), hostile.mutated(lines_of(SEEN)), raw),
    ),
    "compressed observations": (10, compressed, st.one_of(hostile.mutated(gzip.compress(lines_of(SEEN[:1]))), raw)),
    "archives": (10, archived, st.one_of(zips(), hostile.mutated(BUNDLE), raw)),
    "Transformer Engine folders": (5, transformer_engine, st.one_of(hostile.mutated(METADATA), raw)),
}


def every_kind() -> Iterator[tuple[str, tuple[int, Callable[[Any], None], st.SearchStrategy[Any]]]]:
    """The name of each kind of input, its share of all, its property, and its strategy."""
    yield from TYPED.items()
    bench = Bench()
    atexit.register(bench.close)
    for name, (share, act, strategy) in FILES.items():
        yield name, (share, functools.partial(act, bench), strategy)
