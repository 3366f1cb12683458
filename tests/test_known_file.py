"""What may a known file say, and is it changed without losing a line of it?"""

from __future__ import annotations

import string
from datetime import date
from pathlib import Path

import pytest
from commands import typed
from hypothesis import given
from hypothesis import strategies as st
from known_files import ALL, LINK, UNNAMED, entry, written

from gradcheck_cli import known_editing, known_file
from gradcheck_cli.errors import UsageError
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.known import VERSIONED, KnownFailure
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.verdict import Outcome

# What is wrong -> the file, the line that must be named, and what must be said.
GOOD = entry(UNNAMED)
BAD: dict[str, tuple[str, int, str]] = {
    "not TOML": (GOOD + "link = ", 7, "is not TOML: Invalid value (at its end, line 7)"),
    "no such day": (entry(UNNAMED, expires="2027-02-31"), 4, "is not TOML"),
    "a key beside the entries": (f"expires = 2027-01-01\n{GOOD}", 1, "unknown key 'expires': expected description, or"),
    "single brackets": ("[known]\noutcome = 'INEXACT'\n", 1, "expected entries under [[known]], in double brackets"),
    "an unknown key": (GOOD + 'until = "then"\n', 7, "unknown key 'until': expected one of expression, outcome,"),
    "an unknown axis": (entry(UNNAMED, expression='"apy=loop"'), 2, "expected an axis, found 'apy'; the axes are:"),
    "an unknown value": (entry(UNNAMED, expression='"dtype=fp8"'), 2, "dtype=fp8: expected bf16 or fp16 or fp32"),
    "half an expression": (entry(UNNAMED, expression='"api=loop and"'), 2, "expected an axis, `not` or `(`, found the"),
    "an empty expression": (entry(UNNAMED, expression='" "'), 2, "expected a text in quotes, found ' '"),
    "an unknown outcome": (entry(UNNAMED, outcome='"WRONG"'), 3, "outcome = 'WRONG': expected one of VACUOUS, "),
    "a green outcome": (entry(UNNAMED, outcome='"REFUSED"'), 3, "outcome = 'REFUSED': expected one of VACUOUS, "),
    "never run": (entry(UNNAMED, outcome='"UNTESTED"'), 3, "outcome = 'UNTESTED': expected one of VACUOUS, "),
    "an unknown role": (entry(UNNAMED, role='"grad"'), 4, "expected one of fprop, dgrad, wgrad, bgrad"),
    "a message of no exception": (entry(UNNAMED, message='"boom"'), 4, "message: expected it of outcome RAISED alone"),
    "a number as diagnosis": (entry(UNNAMED, diagnosis="2"), 4, "diagnosis: expected a text in quotes, found 2"),
    "versions in a text": (entry(UNNAMED, versions='">=2"'), 4, "versions: expected a table such as"),
    "an unknown library": (
        entry(UNNAMED, versions='{ numpy = ">=2" }'),
        4,
        "versions of 'numpy': expected transformer",
    ),
    "a bad specifier": (entry(UNNAMED, versions='{ torch = "2.x" }'), 4, "versions of torch: expected a specifier"),
    "an empty specifier": (entry(UNNAMED, versions='{ torch = "" }'), 4, "versions of torch: expected a specifier"),
    "a number as version": (entry(UNNAMED, versions="{ torch = 2.11 }"), 4, "versions of torch: expected a specifier"),
    "a bare architecture": (entry(UNNAMED, architecture='"sm90"'), 4, "architecture: expected a list such as"),
    "an unknown architecture": (entry(UNNAMED, architecture='["hopper"]'), 4, "architecture: expected a list such as"),
    "a link to fill in": (entry(UNNAMED, link='"TODO"'), 4, "link is still TODO: expected the address of the"),
    "an empty link": (entry(UNNAMED, link='""'), 4, "link: expected a text in quotes, found an empty one"),
    "a day in quotes": (
        entry(UNNAMED, expires='"2027-01-01"'),
        4,
        "expires: expected a day such as 2027-06-30, without",
    ),
    "a time": (entry(UNNAMED, expires="2027-01-01T00:00:00"), 4, "expires: expected a day such as 2027-06-30, without"),
    "no owner": (entry(UNNAMED, owner=None), 1, "owner is missing: an entry needs expression, outcome, link, owner,"),
    "the same twice": (
        f"{GOOD}\n{entry(UNNAMED, owner=chr(34) + 'you' + chr(34))}",
        8,
        "the same as the entry on line 1",
    ),
    "wrong in the second": (
        f"# one\n{GOOD}\n# two\n{entry(ALL[1], outcome='7')}",
        12,
        "outcome: expected a text in qu",
    ),
}


@pytest.mark.parametrize(("text", "line", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    file = written(tmp_path / "mine.toml", text)
    done = typed("known", "prune", str(tmp_path), "--known", str(file))
    first = done.err.splitlines()[0]
    assert (done.code, done.out, "Traceback" in done.err) == (2, "", False)
    assert first.startswith(f"gradcheck: {file}")
    assert f"line {line}" in first
    assert said in done.err


def test_a_file_that_is_not_utf_8_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="expected a TOML file in UTF-8"):
        known_file.load(str(tmp_path / "mine.toml"))


def test_an_empty_file_knows_nothing(tmp_path: Path) -> None:
    assert known_file.load(str(written(tmp_path / "mine.toml", ""))) == []


def test_an_entry_is_read_as_it_is_written(tmp_path: Path) -> None:
    versions = '{ transformer-engine = ">=2.14,<2.19", cublas = "~=13.5" }'
    more = {"versions": versions, "architecture": '["sm90", "cpu"]', "role": '"wgrad"', "note": '"why"'}
    file = written(tmp_path / "mine.toml", "# head", entry(UNNAMED, more, expires="2027-06-30"))
    assert known_file.load(str(file)) == [
        KnownFailure(
            place=f"{file}, line 2",
            line=2,
            expression="api=wgrad_doubled",
            outcome=Outcome.INEXACT,
            role="wgrad",
            versions={"transformer-engine": ">=2.14,<2.19", "cublas": "~=13.5"},
            architecture=["sm90", "cpu"],
            link=LINK,
            owner="me",
            expires=date(2027, 6, 30),
            note="why",
        )
    ]


def test_the_shipped_file_is_named_and_is_no_matrix() -> None:
    assert {one.place.rpartition(",")[0] for one in known_file.load("known")} == {"cases/known.toml"}
    assert "known" not in dict(matrix.available())


def test_entries_that_differ_in_where_they_hold_are_two(tmp_path: Path) -> None:
    here, there = entry(UNNAMED, architecture='["sm90"]'), entry(UNNAMED, architecture='["sm100"]')
    assert len(known_file.load(str(written(tmp_path / "mine.toml", here, there)))) == 2


# Changing a file

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text == text.strip() != "")
SPECIFIERS = st.sampled_from((">=2.14,<2.19", "==2.17.1", "~=13.5", "!=2.*"))


@st.composite
def failures(draw: st.DrawFn, number: int = 0) -> KnownFailure:
    """Entries with anything that a text may hold; a number keeps one from being another."""
    outcome = draw(st.sampled_from([Outcome.MISSING, Outcome.INEXACT, Outcome.RAISED]))
    return KnownFailure(
        place="",
        line=0,
        expression=f'seed={number} and m_splits="64,0,128"' if draw(st.booleans()) else f"seed={number}",
        outcome=outcome,
        role=draw(st.sampled_from([None, *ROLES])),
        diagnosis=draw(st.just("") | TEXTS),
        message=draw(st.just("") | TEXTS) if outcome is Outcome.RAISED else "",
        versions=draw(st.dictionaries(st.sampled_from(list(VERSIONED)), SPECIFIERS)),
        architecture=draw(st.lists(st.sampled_from(["sm90", "sm100", "cpu"]), unique=True)),
        link=draw(TEXTS),
        owner=draw(TEXTS),
        expires=draw(st.dates()),
        note=draw(st.just("") | TEXTS),
    )


FILES = st.integers(0, 5).flatmap(lambda count: st.tuples(*(failures(number) for number in range(count))))
HEADS = st.sampled_from(("", "# head\n", 'description = "mine"\n\n# head\n'))


def said(entries: list[KnownFailure]) -> list[str]:
    return [known_editing.written(one) for one in entries]


@given(HEADS, FILES)
def test_what_is_appended_is_read_back_and_what_was_there_is_untouched(
    head: str, entries: tuple[KnownFailure, ...]
) -> None:
    text = known_editing.appended(head, entries, "mine.toml")
    assert text.startswith(head)
    assert said(known_file.parse(text, "mine.toml")) == said(list(entries))


@given(HEADS, FILES, st.data())
def test_what_is_removed_is_gone_and_every_other_line_is_still_there(
    head: str, entries: tuple[KnownFailure, ...], data: st.DataObject
) -> None:
    read = known_file.parse(known_editing.appended(head, entries, "mine.toml"), "mine.toml")
    gone = data.draw(st.lists(st.sampled_from(read), unique_by=str) if read else st.just([]))
    text = known_editing.without(known_editing.appended(head, entries, "mine.toml"), gone, "mine.toml")
    kept = [one for one in read if one not in gone]
    assert said(known_file.parse(text, "mine.toml")) == said(kept)
    assert text.split() == known_editing.appended(head, kept, "mine.toml").split()


def test_a_file_whose_entries_cannot_be_told_apart_is_left_to_its_owner(tmp_path: Path) -> None:
    text = f"known = [ {{ {', '.join(entry(UNNAMED).splitlines()[1:])} }} ]\n"
    file = written(tmp_path / "mine.toml", text)
    with pytest.raises(UsageError, match="change this file by hand"):
        known_editing.without(text, known_file.load(str(file)), str(file))


@given(st.text(string.printable, max_size=80))
def test_no_text_is_a_traceback(text: str) -> None:
    with pytest.raises(UsageError, match=r"^mine\.toml"):
        known_file.parse(f"[[known]]\n{text}", "mine.toml")
