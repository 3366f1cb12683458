"""Does a run that is judged again say what it said, and under a stricter lambda what a stricter run would have said?"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from commands import child, typed
from in_process import CPU, engine
from test_lazy_import import run as without_torch

from gradcheck_cli import pipeline
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge import bounds
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.records.base import OBSERVATION_VERSION
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.rejudging import allowed, judged_again
from gradcheck_cli.reporters.read import read

EXCLUDED, REFUSED = "torch:api=loop:m_splits=uneven:num_gemms=1", "torch:api=grouped_mm:in_features=12"
FUSED, LATER = "torch:api=loop:fuse_wgrad_accumulation=1:bias=1", "torch:api=loop:seed=3"
# In the order in which they are asked for -> what becomes of each; the run stops at the first that is not green.
FATES = {
    FUSED: "PASSED",
    "torch:api=loop:dtype=fp32:m_splits=5,0,9": "PASSED",
    EXCLUDED: "EXCLUDED",
    REFUSED: "REFUSED",
    "torch:api=grouped_mm:grad_output=expanded": "RAISED",
    LATER: "UNTESTED",
}
FP32 = (
    "torch:api=loop:dtype=fp32:bias=1:tokens_per_expert=64",
    "torch:api=loop:dtype=fp32:fuse_wgrad_accumulation=1:in_features=256",
    "torch:api=grouped_mm:dtype=fp32:single_grouped_weight=1:m_splits=64,0,128",
)
STRICT = 0.2
Change = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in real workers that stops before its last case."""
    where = tmp_path_factory.mktemp("run") / "run"
    asked = [part for case in FATES for part in ("--case", case)]
    child("run", "--device", "cpu", "--maxfail", "1", "--output", str(where), *asked)
    return where


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "run")


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def outcomes(verdicts: list[Verdict]) -> dict[str, str]:
    return {verdict.case: verdict.outcome.value for verdict in verdicts}


def rewritten(folder: Path, change: Change, name: str = "observations.jsonl") -> None:
    (folder / name).write_text("\n".join(change(lines(folder / name))) + "\n", "utf-8")


def test_the_run_has_cases_of_several_fates_and_one_that_never_ran(folder: Path) -> None:
    assert outcomes(read(folder).verdicts) == FATES


def test_every_verdict_is_the_same_again_in_every_field(folder: Path) -> None:
    assert judged_again(folder).verdicts == read(folder).verdicts


def test_the_whole_report_is_the_same_again(folder: Path) -> None:
    assert judged_again(folder) == read(folder)


def test_it_prints_what_report_prints_but_for_its_own_end(folder: Path) -> None:
    told, again = (
        typed(command, str(folder)).out.partition("\nOMP_NUM_THREADS=1\n") for command in ("report", "judge")
    )
    assert again[0] == told[0] != ""
    assert (told[2].startswith("report in "), "seconds" in again[2], " s\n" in again[2]) == (True, False, False)
    assert " ".join(again[2].split()) == (
        f"judged from {folder / 'observations.jsonl'}; nothing written exit code 1: findings"
    )


def test_it_ends_with_the_exit_code_of_the_verdicts_where_report_only_names_that_of_the_run(folder: Path) -> None:
    told, again = typed("report", str(folder)), typed("judge", str(folder))
    assert (told.code, again.code, told.err, again.err) == (0, 1, "", "")
    assert "\nthe run's exit code was 1: findings · it took " in told.out


def test_it_writes_nothing(copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    typed("judge", str(copy))
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_it_needs_no_torch(folder: Path) -> None:
    done = without_torch(["judge", str(folder)])
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 RAISED" in done.stdout


def test_observations_may_be_kept_compressed(copy: Path) -> None:
    plain = copy / "observations.jsonl"
    (copy / "observations.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert judged_again(copy).verdicts == read(copy).verdicts


def test_a_run_that_was_killed_is_judged_from_its_journal(copy: Path) -> None:
    (copy / "report.json").unlink()
    rewritten(copy, lambda journal: [*journal[:6], '{"event":"started","sch'], "journal.jsonl")
    rewritten(copy, lambda seen: [seen[0], seen[1][:100]])
    told = outcomes(judged_again(copy).verdicts)
    assert (told.pop(FUSED), told.pop(EXCLUDED), set(told.values())) == ("PASSED", "EXCLUDED", {"UNTESTED"})


def test_a_case_that_was_seen_and_not_yet_judged_when_the_run_was_killed_is_judged(copy: Path) -> None:
    (copy / "report.json").unlink()
    rewritten(copy, lambda journal: journal[:4], "journal.jsonl")
    rewritten(copy, lambda seen: seen[:1])
    assert (outcomes(read(copy).verdicts)[FUSED], outcomes(judged_again(copy).verdicts)[FUSED]) == (
        "UNTESTED",
        "PASSED",
    )


def test_a_verdict_without_its_observation_is_untested_never_carried_over(copy: Path) -> None:
    rewritten(copy, lambda seen: seen[1:])
    again = judged_again(copy).verdicts
    assert outcomes(again) == {**FATES, FUSED: "UNTESTED"}
    (only,) = next(verdict for verdict in again if verdict.case == FUSED).findings
    assert only.why.startswith("expected the observation behind a verdict of PASSED; found none in")


def test_what_is_wrong_in_the_observation_is_found_whatever_the_report_says(copy: Path) -> None:
    rewritten(copy, lambda seen: [seen[0].replace('"differing":0', '"differing":1'), *seen[1:]])
    assert outcomes(judged_again(copy).verdicts) == {**FATES, FUSED: "INEXACT"}


def test_a_case_is_judged_where_its_own_worker_ran(copy: Path) -> None:
    # The report knows the last of the workers; the refusal is due where the first one ran.
    report = json.loads((copy / "report.json").read_text("utf-8"))
    report["environment"]["versions"]["torch"] = ""
    (copy / "report.json").write_text(json.dumps(report), "utf-8")
    by_journal = outcomes(judged_again(copy).verdicts)
    (copy / "journal.jsonl").unlink()
    assert (by_journal, outcomes(judged_again(copy).verdicts)) == (FATES, {**FATES, REFUSED: "RAISED"})


def of_schema(line: str, number: int) -> str:
    return line.replace(f'{{"schema":{OBSERVATION_VERSION},', f'{{"schema":{number},', 1)


# What is done to the observations -> what the message names.
WRONG: dict[str, tuple[Change, tuple[str, ...]]] = {
    "a line that is no JSON": (lambda seen: ["{", *seen], ("observations.jsonl, line 1:", "expected a record")),
    "a record of something else": (
        lambda seen: [seen[0], f'{{"schema":{OBSERVATION_VERSION}}}', *seen[1:]],
        ("line 2:", "missing required field `case`"),
    ),
    "a field of the wrong type": (
        lambda seen: [seen[0].replace('"differing":0', '"differing":"none"'), *seen[1:]],
        ("line 1:", "Expected `int`, got `str`"),
    ),
    "a field that nobody knows": (lambda seen: [seen[0][:-1] + ',"passed":true}', *seen[1:]], ("line 1:", "`passed`")),
    "an older schema": (
        lambda seen: [seen[0], of_schema(seen[1], 0), *seen[2:]],
        (
            f"line 2: expected schema {OBSERVATION_VERSION}, found 0",
            f"this gradcheck reads schema {OBSERVATION_VERSION} only: record the run again to judge it; ",
            "`gradcheck report ",
            "` still shows what it concluded",
        ),
    ),
    "a later schema": (
        lambda seen: [seen[0], of_schema(seen[1], 99), *seen[2:]],
        ("line 2: expected schema", "found 99", "a later one wrote it: update this one"),
    ),
    "a case of another run": (
        lambda seen: [*seen, seen[0].replace(FUSED, LATER + "3")],
        ("line 5: expected a case of the run in", f"found '{LATER}3'"),
    ),
    "a case twice": (lambda seen: [*seen, seen[1]], ("line 5: expected one observation of each case, found a second",)),
}


@pytest.mark.parametrize(("change", "named"), tuple(WRONG.values()), ids=WRONG)
def test_a_wrong_line_is_a_usage_error_that_names_it(change: Change, named: tuple[str, ...], copy: Path) -> None:
    rewritten(copy, change)
    done = typed("judge", str(copy))
    assert (done.code, done.out) == (2, "")
    assert [part for part in named if part not in done.err] == [], done.err


# Files that are taken out of the folder -> what the message says.
WITHOUT = {
    "no observations": (("observations.jsonl",), "nothing to judge in"),
    "no run": (("report.json", "journal.jsonl"), "no run in"),
}


@pytest.mark.parametrize(("names", "said"), tuple(WITHOUT.values()), ids=WITHOUT)
def test_a_folder_that_cannot_be_judged_is_a_usage_error(names: tuple[str, ...], said: str, copy: Path) -> None:
    for name in names:
        (copy / name).unlink()
    done = typed("judge", str(copy))
    assert (done.code, done.out, said in done.err) == (2, "", True), done.err


@pytest.mark.parametrize("cut", (0, 20), ids=("not compressed", "cut off"))
def test_a_compressed_file_that_is_not_whole_is_a_usage_error_that_names_it(cut: int, copy: Path) -> None:
    plain = copy / "observations.jsonl"
    raw = plain.read_bytes()
    (copy / "observations.jsonl.gz").write_bytes(gzip.compress(raw)[:-cut] if cut else raw)
    plain.unlink()
    done = typed("judge", str(copy))
    assert (done.code, done.out) == (2, "")
    assert "observations.jsonl.gz: " in done.err
    assert "expected a whole file, as gzip writes it" in done.err


def test_axes_that_are_not_those_of_the_id_are_a_usage_error(copy: Path) -> None:
    report = json.loads((copy / "report.json").read_text("utf-8"))
    next(verdict for verdict in report["verdicts"] if verdict["case"] == FUSED)["axes"]["bias"] = 0
    (copy / "report.json").write_text(json.dumps(report), "utf-8")
    with pytest.raises(UsageError, match=r"expected torch:api=loop:fuse_wgrad_accumulation=1.*, as the axes say"):
        judged_again(copy)


@pytest.mark.parametrize("asked", ("4.000001", "-0.1", "nan", "inf"))
def test_only_a_stricter_lambda_may_be_asked_for(asked: str, folder: Path) -> None:
    done = typed("judge", str(folder), f"--lambda={asked}")
    assert (done.code, done.out) == (2, "")
    assert f"--lambda {float(asked):g}: expected a number from 0 to 4, with which the run looked" in done.err


@pytest.mark.parametrize("asked", (0.0, STRICT, bounds.LAMBDA))
def test_a_lambda_down_to_zero_is_what_is_judged_with(asked: float) -> None:
    assert allowed(asked) == asked


def test_no_variable_sets_the_lambda(folder: Path) -> None:
    done = child("judge", str(folder), GRADCHECK_LAMBDA="0")
    assert done.out == typed("judge", str(folder)).out


def test_a_stricter_lambda_is_told_in_the_summary_and_fails_what_needs_more(folder: Path) -> None:
    done = typed("judge", str(folder), "--lambda", "0.01")
    assert (done.code, "--lambda=0.01" in done.out) == (1, True)
    assert "1 INACCURATE" in done.out


def seen_at(case: str, lambda_: float, fault: str = "") -> Observation:
    """What a run with this lambda sees of a case, or of one of `faulty_layers` in the candidate's place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "LAMBDA", lambda_)
        job = pipeline.job(Case.parse(case))
    assert {one.lambda_ for one in job.rounding.values()} == {lambda_}
    if fault:
        job = msgspec.structs.replace(job, target=f"faulty_layers:{fault}")
    return engine(job.target).run(job)


@pytest.fixture(scope="module", params=FP32)
def both(request: pytest.FixtureRequest) -> tuple[Verdict, Verdict]:
    """The verdict of a strict run, and that of a usual run judged again."""
    case = str(Case.parse(request.param))
    strict, usual = (seen_at(case, lambda_) for lambda_ in (STRICT, bounds.LAMBDA))
    assert strict != msgspec.structs.replace(usual, seconds=strict.seconds)
    return conclude(Case.parse(case), strict, CPU, STRICT), conclude(Case.parse(case), usual, CPU, STRICT)


def test_a_usual_run_judged_strictly_fails_what_a_strict_run_fails(both: tuple[Verdict, Verdict]) -> None:
    strict, again = both
    assert (again.outcome, again.roles) == (strict.outcome, strict.roles)
    assert Outcome.INACCURATE in again.roles.values()


def test_a_usual_run_judged_strictly_blames_what_a_strict_run_blames(both: tuple[Verdict, Verdict]) -> None:
    strict, again = ([(f.slot, f.outcome, f.diagnosis, f.experts) for f in one.findings] for one in both)
    assert again == strict


@pytest.mark.parametrize("lambda_", (STRICT, 0.0))
@pytest.mark.parametrize("fault", ("one_wgrad_off_by_one", "dgrad_scaled", "prefill_lost", "nan_wgrad"))
def test_a_fault_judged_strictly_is_blamed_and_named_as_in_a_strict_run(fault: str, lambda_: float) -> None:
    case = str(Case.parse(FP32[1]))
    strict, again = (
        conclude(Case.parse(case), seen_at(case, one, fault), CPU, lambda_) for one in (lambda_, bounds.LAMBDA)
    )
    told = [[(f.slot, f.outcome, f.diagnosis, f.experts) for f in verdict.findings] for verdict in (strict, again)]
    assert told[0] == told[1] != []


def test_a_usual_run_judged_strictly_says_whose_lambda_its_ratio_is_of(both: tuple[Verdict, Verdict]) -> None:
    (_, again) = both
    assert all(f.ratio is not None and f.ratio <= 1 for f in again.findings)
    assert all(
        f.why.startswith("expected errors that lambda = 0.2 allows, found one that only lambda = ")
        and "in the run, with lambda = 4, the largest was" in f.why
        for f in again.findings
    )
