"""Is a run of any size read, told and explained as a small one is? What is done piece by piece, against the whole."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import msgspec
import pytest
import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge.boxes import cases, mask, members
from gradcheck_cli.judge.nearest import nearest, simplicity
from gradcheck_cli.records.base import to_json
from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.coverage import together
from gradcheck_cli.records.report import Opened, Report
from gradcheck_cli.records.rule import Nearest
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters import csv_pandas, report_json
from gradcheck_cli.reporters.lines_of_file import LARGEST, placed
from gradcheck_cli.reporters.read import journal, observations, read
from gradcheck_cli.reporters.sharing import Sharing

REPORTS = {"none": samples.report([]), "one": samples.report([samples.verdict("te:api=op")]), "many": samples.many(40)}
every_size = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)


@every_size
def test_a_report_in_parts_is_the_whole_record(report: Report) -> None:
    assert report_json.text(report) == msgspec.json.format(to_json(report), indent=2) + "\n"


@every_size
@pytest.mark.parametrize("indent", (0, 2, 4), ids="indent {}".format)
def test_a_report_is_read_however_it_is_laid_out(report: Report, indent: int, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(msgspec.json.format(to_json(report), indent=indent), encoding="utf-8")
    assert read(tmp_path) == report


def test_a_report_is_read_verdict_by_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read in one piece"))
    (tmp_path / "report.json").write_text(report_json.text(samples.many(40)), encoding="utf-8")
    assert read(tmp_path) == samples.many(40)


def test_a_line_of_a_journal_is_told_before_the_next_but_one_is_read(tmp_path: Path) -> None:
    lines = [Opened(run=samples.RUN), Opened(run=samples.RUN)]
    (tmp_path / "journal.jsonl").write_text("".join(f"{to_json(line)}\n" for line in lines) + '{"event": "other"}\n')
    told = journal(tmp_path / "journal.jsonl")
    assert next(told) == lines[0]
    with pytest.raises(UsageError, match="line 3: Object missing required field"):
        list(told)


BOMBS = {"one line": b"[" + b" " * (LARGEST + 1), "blank lines": b"\n" * (1 << 16) + b" " * (LARGEST - 9) + b"\n" * 20}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_a_few_bytes_that_unpack_to_many_are_not_all_unpacked(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "observations.jsonl.gz").write_bytes(gzip.compress(content, 1))
    with pytest.raises(UsageError, match="expected records of at most 64 MiB each, found"):
        list(observations(tmp_path))


def test_zero_bytes_that_a_power_cut_left_are_no_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{}\n\0\0\0\r\n \n{"a": 1}\n{"b"')
    assert list(placed(tmp_path / "x")) == [(f"{tmp_path}/x, line 1", b"{}"), (f"{tmp_path}/x, line 4", b'{"a": 1}')]


def test_what_verdicts_have_alike_is_kept_once() -> None:
    sharing = Sharing()
    plain = [samples.verdict(f"te:api=op:seed={seed}", Outcome.MISSING) for seed in (1, 2)]
    one, two = map(sharing.verdict, plain)
    assert [one, two] == plain
    assert one.findings is two.findings
    assert one.margins is two.margins
    assert plain[0].findings is not plain[1].findings


def test_two_runs_of_one_case_share_its_axes_where_they_are_the_same() -> None:
    sharing = Sharing()
    one, two = (sharing.verdict(samples.verdict("te:api=op", how)) for how in (Outcome.PASSED, Outcome.MISSING))
    assert one.axes is two.axes
    other = samples.verdict("te:api=op")
    other = msgspec.structs.replace(other, axes={**other.axes, "dtype": "fp32"})
    assert sharing.verdict(other) == other


def test_a_table_of_many_rows_has_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = csv_pandas.text(samples.many(40))
    monkeypatch.setattr(csv_pandas, "_ROWS", 7)
    assert csv_pandas.text(samples.many(40)) == whole
    assert len(list(csv_pandas.parts(samples.many(40)))) == 6


@given(st.sets(st.integers(0, 300)))
def test_a_set_of_cases_is_a_mask_and_back(numbers: set[int]) -> None:
    assert mask(sorted(numbers)) == sum(1 << number for number in numbers)
    assert members(mask(sorted(numbers))) == sorted(numbers)


def test_an_axis_of_a_thousand_values_is_in_no_rule() -> None:
    points = [{"seed": number, "bias": number % 2} for number in range(1_001)]
    assert list(cases(points, ["seed", "bias"]).having) == ["bias"]
    assert list(cases(points[:1_000], ["seed", "bias"]).having) == ["seed", "bias"]
    assert list(cases(points, ["seed", "bias"], kept=["seed"]).having) == ["seed", "bias"]


runs = st.lists(
    st.builds(
        Case,
        provider=st.sampled_from(["te", "torch", "faults"]),
        api=st.sampled_from(["op", "module"]),
        bias=st.booleans(),
        dtype=st.sampled_from(["bf16", "fp32"]),
        seed=st.integers(0, 3),
    ),
    max_size=25,
    unique=True,
)


@given(runs, st.randoms(use_true_random=False), st.lists(st.sampled_from(AXES), max_size=3))
@settings(deadline=None, database=None)
def test_the_nearest_case_is_that_of_a_search_over_all_pairs(
    run: list[Case], dice: st.DataObject, preferred: list[str]
) -> None:
    outcomes = [dice.choice([Outcome.PASSED, Outcome.MISSING, Outcome.CRASHED]) for _ in run]  # type: ignore[attr-defined]
    rows = [(one := samples.verdict(case, how), one.axes) for case, how in zip(run, outcomes, strict=True)]
    failing = [row for row in rows if row[0].outcome is not Outcome.PASSED]
    assert nearest(failing, rows, preferred) == searched(failing, rows, preferred)


def searched(failing: list[Row], rows: list[Row], preferred: list[str]) -> Nearest | None:
    found = []
    for (lost, point), axis, (kept, other) in itertools.product(failing, AXES, rows):
        apart = [name for name in AXES if point[name] != other[name]]
        of_faults = axis == "api" and point["provider"] == "faults"
        if apart == [axis] and kept.outcome is Outcome.PASSED and not of_faults:
            near = Nearest(case=kept.case, beside=lost.case, axis=axis, failing=point[axis], passing=other[axis])
            found.append(((axis not in preferred, simplicity(point), simplicity(other)), near))
    return min(found, key=lambda one: one[0])[1] if found else None


Row = tuple[Verdict, dict[str, str | int]]


@given(runs)
@settings(deadline=None, database=None)
def test_pairs_of_values_are_counted_as_they_stand_together(run: list[Case]) -> None:
    verdicts = [samples.verdict(case, Outcome.REFUSED if case.seed == 1 else Outcome.PASSED) for case in run]
    counted = [0, 0]
    for layer in {(case.provider, case.api) for case in run}:
        own = [one for one in verdicts if (one.axes["provider"], one.axes["api"]) == layer]
        varying = [axis for axis in AXES if len({one.axes[axis] for one in own}) > 1]
        for first, second in itertools.combinations(varying, 2):
            counted[0] += len({(one.axes[first], one.axes[second]) for one in own})
            counted[1] += len({(one.axes[first], one.axes[second]) for one in own if one.outcome.executed})
    found = together(verdicts)
    assert [found.asked, found.executed] == counted
