"""Does any input at all end otherwise than with a right answer or a clear error? And what once did, does it still?

A small share of `make fuzz`: the same inputs each time.
"""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path
from typing import Any

import fuzzed
import markup
import msgspec
import pytest
import report_samples as samples
from commands import ROOT, typed
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from gradcheck_cli import packing
from gradcheck_cli.commands.options import as_text
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge.difference import difference
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import Pairs
from gradcheck_cli.reporters import csv_pandas, junit, markdown
from gradcheck_cli.reporters import difference as of_difference
from gradcheck_cli.reporters.clean_console import CleanConsole
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reproduce import private

KINDS = dict(fuzzed.every_kind())


@pytest.mark.parametrize("name", KINDS)
def test_any_input_ends_with_a_right_answer_or_a_clear_error(name: str) -> None:
    share, act, strategy = KINDS[name]

    @seed(0)
    @settings(max_examples=10 * share, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def each(value: Any) -> None:
        fuzzed.answered(lambda: act(value))

    each()


def test_the_property_itself_can_fail() -> None:
    with pytest.raises(ZeroDivisionError):
        fuzzed.answered(lambda: print(1 / 0))
    with pytest.raises(AssertionError, match="characters"):
        fuzzed.answered(lambda: raised(UsageError("x" * 10_000)))


def raised(error: Exception) -> None:
    raise error


# What runs a text, or makes objects of data as the data says.
_RUNS = {"eval", "exec", "compile", "__import__", "execfile"}
_MAKES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "jsonpickle", "code", "runpy"}


def test_nothing_that_is_read_from_a_file_is_run() -> None:
    found = []
    for path in sorted((ROOT / "gradcheck_cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _RUNS:
                found.append(f"{path.name}: {node.func.id}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "numpy.load", "np.load"}:
                found.append(f"{path.name}: {ast.unparse(node.func)}")
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                found += [f"{path.name}: {name}" for name in names if name.partition(".")[0] in _MAKES]
    assert found == []


def refused(folder: Path, *, says: str, **files: bytes) -> None:
    """The matrix m.toml of these files is refused in these words, and in not too many."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    done = typed("list", "--provider", "torch", "--matrix", str(folder / "m.toml"))
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err
    assert len(done.err) < 2_000


BLOCK = b'[[block]]\napi = "loop"\n'
# A matrix file that once ended in a traceback, or never -> what is said of it.
MATRICES = {
    "lists without an end": (b"bias = " + b"[" * 100_000, "found nesting without an end"),
    "keys without an end": (b"bias" + b".a" * 5_000 + b" = 1", "found nesting without an end"),
    "a number without an end": (b"seed = " + b"9" * 10_000, "expected numbers of at most 20 digits"),
    "a hexadecimal number without an end": (b"seed = 0x" + b"f" * 10_000, "expected numbers of at most 20 digits"),
    "a value without an end": (b'dtype = "' + b"x" * 1_000_000 + b'"', "more characters): expected bf16 or fp16"),
    "a key without an end": (b"x" * 1_000_000 + b" = 1", "more characters): expected one of provider"),
    "more combinations than anybody runs": (
        b"seed = [%b]\ntokens_per_expert = [%b]\nin_features = [%b]"
        % ((b",".join(str(number).encode() for number in range(1, 1_001)),) * 3),
        "expected at most 1,000,000 combinations of axis values, found 1,000,000,000; leave out values",
    ),
    "more than is read": (b"#" * (9 << 20), "expected at most 8,388,608 characters, found more"),
    "a newline behind a name": (b'm_splits = "balanced\\n"', "expected balanced, uneven"),
}


@pytest.mark.parametrize(("text", "says"), MATRICES.values(), ids=MATRICES)
def test_a_matrix_file_without_an_end_is_told_as_one(tmp_path: Path, text: bytes, says: str) -> None:
    refused(tmp_path, m_toml=BLOCK + text, says=says)


def test_a_line_of_toml_ends_with_a_newline_and_nothing_else(tmp_path: Path) -> None:
    text = 'description = "a"  # one\u2028line\x85still\n[[block]]\ndtype = "int8"\n'
    refused(tmp_path, m_toml=text.encode(), says="m.toml, line 3: dtype=int8")


def test_a_cover_that_is_no_text_is_told_as_one(tmp_path: Path) -> None:
    cover = b'[[block]]\ncover = 2\ndtype = ["bf16", "fp32"]\n'
    refused(tmp_path, m_toml=cover, m_cover=b"torch:api=loop\xff", says="m.cover cannot be read: expected the ids")


def test_cases_are_made_one_after_the_other(tmp_path: Path) -> None:
    sizes = ",".join(str(number) for number in range(1, 901))
    (tmp_path / "m.toml").write_text(f'[[block]]\napi = "loop"\nin_features = [{sizes}]\nout_features = [{sizes}]\n')
    points = matrix.enumerate_cases(matrix.load(str(tmp_path / "m.toml")), [fuzzed.TORCH], 0)
    assert iter(points) is iter(points)  # nothing that holds them all
    assert str(next(iter(points))) == "torch:api=loop:in_features=1:out_features=1"


@pytest.mark.parametrize("what", ("id", "expression", "matrix", "known", "shard", "run", "te"))
def test_a_million_characters_are_told_in_a_few(what: str) -> None:
    long = "x" * 1_000_000
    command = {
        "id": ("show", f"torch:api=loop:dtype={long}"),
        "expression": ("list", "-k", " or ".join(["bias"] * 150_000) + " or nosuch"),
        "matrix": ("list", "--matrix", long),
        "known": ("judge", "reports/torch-cpu", "--known", long),
        "shard": ("list", "--shard", long),
        "run": ("report", long),
        "bundle": ("verify", long),
        "te": ("list", "--te", long),
    }[what]
    done = typed(*command)
    assert done.code == 2
    assert done.err.startswith("gradcheck: ")
    assert len(done.err) < 3_000


def test_a_name_with_a_newline_behind_it_is_none() -> None:
    for text in (
        "torch:api=loop\n:bias=1",
        "torch:api=loop:m_splits=hot\n:bias=1",
        "torch:api=loop:m_splits=1,2\n:bias=1",
    ):
        with pytest.raises(ValueError, match="expected"):
            Case.parse(text)


def test_a_report_of_pairs_that_nobody_asked_for_is_told_all_the_same(tmp_path: Path) -> None:
    report = msgspec.structs.replace(samples.seed(), pairs=Pairs(asked=0, executed=5))
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(report))
    assert typed("report", str(tmp_path)).code == 0
    plain = msgspec.to_builtins(report) | {"coverage": [{"axis": "bias", "value": 1, "asked": 0, "executed": -5}]}
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(plain))
    done = typed("report", str(tmp_path))
    assert (done.code, "cannot read" in done.err) == (2, True)


def test_a_journal_nested_without_an_end_is_passed_over_and_told_of(tmp_path: Path) -> None:
    lines = fuzzed.lines_of(fuzzed.JOURNAL).replace(b"\n", b"\n" + b"[" * 100_000 + b"\n", 1)
    (tmp_path / "journal.jsonl").write_bytes(lines)
    assert len(read(tmp_path).verdicts) == len(fuzzed.CASES)
    (tmp_path / "report.json").write_bytes(b'{"schema": 1, "run": ' + b"[" * 100_000)
    assert len(read(tmp_path).verdicts) == len(fuzzed.CASES)


def spoiled(**axes: str) -> Any:
    """A report of one case, with these words for its axes."""
    one = samples.verdict("te:api=op")
    return samples.report([msgspec.structs.replace(one, axes={**one.axes, **axes})])


def test_an_axis_that_is_no_value_becomes_no_markup() -> None:
    marked = spoiled(dtype="<img src=x onerror=alert(1)>", single_grouped_weight="[x](javascript:y)")
    markup.of_markdown(markdown.text(marked))
    markup.of_junit(junit.text(spoiled(api="\x1bop", path="\x00")))


def test_no_cell_is_a_formula() -> None:
    for text in ("=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1+1", "\t=1"):
        markup.of_csv(csv_pandas.text(spoiled(dtype=text, later=text)), 1)


def test_words_of_a_run_are_no_marks_of_rich() -> None:
    old, new = spoiled(api="[/]", path="[link=http://evil]x"), samples.report([])
    new = msgspec.structs.replace(new, run=old.run)
    out = io.StringIO()
    of_difference.show(difference(old, new, {}), "table", CleanConsole(file=out, width=200))
    assert "te [/] [link=http://evil]x" in out.getvalue()


@given(st.text(max_size=30))
@settings(deadline=None, database=None, max_examples=50)
def test_nothing_moves_a_terminal(text: str) -> None:
    markup.of_terminal(lambda console: console.print(text + "\x1b]0;x\x07\x9b2J\u202e"))


def test_a_line_of_a_journal_is_packed_as_one_whatever_it_holds(tmp_path: Path) -> None:
    one = json.dumps({"why": "a\u2028b\x85c\x0bd\x1ce"}, ensure_ascii=False)
    (tmp_path / "journal.jsonl").write_text(f"{one}\n{'[' * 100_000}\n", encoding="utf-8")
    (tmp_path / "outside").write_text("nobody's business")
    (tmp_path / "worker-1.log").symlink_to(tmp_path / "outside")
    texts = packing.texts_of(tmp_path)
    assert list(texts) == ["journal.jsonl"]
    first, _ = packing._journal(texts["journal.jsonl"], private.Names()).removesuffix("\n").split("\n")
    assert json.loads(first) == json.loads(one)


def test_what_was_typed_in_another_encoding_can_be_recorded() -> None:
    assert as_text("run\udcff") == "run\ufffd"
    assert as_text("r\u00fcn") == "r\u00fcn"


def test_a_folder_that_would_be_two_is_none(tmp_path: Path) -> None:
    done = typed("list", "--provider", "te", "--te", str(tmp_path / "a:b"))
    assert (done.code, "':' in its name, at which PYTHONPATH breaks" in done.err) == (2, True)
