"""Are several versions of Transformer Engine told apart? Recorded runs, and unpacked stand-ins in real workers."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import jsonschema
import msgspec
import pytest
from commands import ROOT, child, typed
from hypothesis import given
from hypothesis import strategies as st
from report_samples import verdict
from rich.console import Console

from gradcheck_cli import installed, plugins, unpacked
from gradcheck_cli.judge.bisection import changes, search
from gradcheck_cli.judge.versions import same, side_by_side
from gradcheck_cli.records import schema
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.report import Report, gravest_code
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.records.versions import Bisection, Change, Result, Row, Side, Tried, Versions
from gradcheck_cli.reporters import bisection as bisection_told
from gradcheck_cli.reporters import versions as versions_told
from gradcheck_cli.reporters.read import read
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import LocalExecutor

STAND_IN = Path(__file__).parent / "fake_te"
SMALL = "num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:microbatches=1"
NATIVE = f"te:api=module:path=native:single_grouped_weight=1:{SMALL}"
LEGACY = f"te:api=module:path=legacy:single_grouped_weight=1:{SMALL}"
RIGHT = f"te:api=module:{SMALL}"

RECORDED = {
    version: ROOT / "reports" / "versions-h200" / "issue-3234-cublas-13.5" / version
    for version in ("2.14.1", "2.16.1", "2.17.1", "2.18.0", "2.19.0", "2.20.2")
}
SINGLE = "single_grouped_weight"
SEED = "te:api=module:single_grouped_weight=1:num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:"
SEED += "microbatches=1:grad_output=expanded"


def unpack(folder: Path, version: str, *, says: str = "", more: str = "") -> Path:
    """A stand-in of a version in a folder of its own; `says` is what it calls itself where that is another."""
    made = folder / f"te-{version}"
    shutil.copytree(STAND_IN, made, ignore=shutil.ignore_patterns("__pycache__"))
    first = made / "transformer_engine" / "__init__.py"
    first.write_text(f'__version__ = "{says or version}"\n', "utf-8")
    with (made / "transformer_engine" / "pytorch" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(more)
    about = made / f"transformer_engine-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformer-engine\nVersion: {version}\n", "utf-8")
    return made


def te(*folders: Path) -> list[str]:
    return [word for folder in folders for word in ("--te", str(folder))]


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "require", lambda *_: None)  # it wants a CUDA device


# --- the table


def recorded(cases: Callable[[str], bool]) -> dict[str, Report]:
    """The six recorded runs, of some of their cases."""
    reports = {}
    for version, folder in RECORDED.items():
        report = read(folder)
        reports[version] = Report(
            run=report.run,
            environment=report.environment,
            tally=report.tally,
            verdicts=[one for one in report.verdicts if cases(one.case)],
            seconds=0.0,
            exit_code=0,
        )
    return reports


def test_six_recorded_versions_side_by_side_are_a_row_for_each_case_that_is_not_the_same() -> None:
    rows, alike = side_by_side(recorded(lambda case: ":api=module" in case))
    assert alike == {"PASSED": 4}
    assert [one.axes["single_grouped_weight"] for one in rows] == [1] * 4
    for one in rows:
        assert [found.outcome.value for found in one.results.values()] == ["MISSING"] * 4 + ["REFUSED"] * 2


def test_two_faults_with_one_outcome_are_not_the_same() -> None:
    doubled = verdict(RIGHT, Outcome.INEXACT)
    (finding,) = doubled.findings
    halved = verdict(RIGHT, Outcome.INEXACT, findings=[type(finding)(slot="wgrad[0]", outcome=finding.outcome, why="")])
    assert same(doubled) != same(halved)


def test_the_exit_code_of_several_runs_is_the_first_of_them_in_the_order_of_the_readme() -> None:
    assert [gravest_code(codes) for codes in ((0, 5, 1), (4, 5), (1, 3, 2), (0, 130, 2), (0, 0))] == [1, 4, 2, 130, 0]


def test_a_table_of_what_failed_breaks_no_name_of_an_axis(capsys: pytest.CaptureFixture[str]) -> None:
    runs = recorded(lambda case: ":api=module" in case)
    names = ("2.14.1", "2.18.0", "2.19.0", "2.20.2")
    rows, _ = side_by_side({name: runs[name] for name in names})
    failed = ["fprop INACCURATE (doubled)", "dgrad INACCURATE (of another expert)"]
    results = {name: Result(outcome=Outcome.MISSING, faults=failed[: number + 1]) for number, name in enumerate(names)}
    rows = [Row(case=one.case, axes=one.axes, results=results) for one in rows]
    found = Versions(
        run=runs[names[0]].run, sides=[Side(version=name) for name in names], rows=rows, same={}, exit_code=1
    )
    versions_told.show(found, Path("out"), Console(width=80, color_system=None))
    said = capsys.readouterr().out
    assert len(re.findall(r"^fuse_wgrad_accumulation=1 ", said, flags=re.MULTILINE)) == 2
    table = said.partition("case ")[2].partition("in every row")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("MISSING") == len(rows) * len(names)


# --- the bisection


@given(st.integers(2, 400), st.data())
def test_one_change_is_found_in_as_many_runs_as_halving_takes(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    asked = search(count, lambda index: index >= first)
    assert {first - 1, first} <= set(asked)
    assert len(asked) <= math.ceil(math.log2(count)) + 2


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.booleans())
def test_whatever_the_results_are_some_change_is_found_where_there_is_one(found: list[int], everything: bool) -> None:  # noqa: FBT001
    asked = search(len(found), found.__getitem__, everything=everything)
    assert asked == {index: found[index] for index in asked}
    differing = [(low, high) for low, high in pairwise(sorted(asked)) if found[low] != found[high]]
    assert all(high == low + 1 for low, high in differing)
    assert bool(differing) == (len(set(found)) > 1)
    if everything or not differing:
        assert len(asked) == len(found)


def test_the_recorded_versions_are_bisected_in_five_runs() -> None:
    reports = recorded(lambda case: case == SEED)
    versions, verdicts = list(reports), [report.verdicts[0] for report in reports.values()]
    asked = search(len(versions), lambda index: same(verdicts[index]))
    (change,) = changes([(versions[index], verdicts[index]) for index in sorted(asked)])
    assert (change.kind, change.old, change.new) == ("closed", "2.18.0", "2.19.0")
    assert len(asked) == 5


# Outcomes of versions 0, 1, 2 ... -> what is said of them.
HISTORIES = {
    "right all along": ("PASSED PASSED", []),
    "broke": ("PASSED MISSING MISSING", ["broke 0 1"]),
    "broke and was mended": ("PASSED MISSING PASSED", ["broke 0 1", "mended 1 2"]),
    "wrong in another way": ("MISSING INEXACT", ["changed 0 1"]),
    "a refusal is no right": ("MISSING REFUSED", ["closed 0 1"]),
    "nor is it wrong": ("REFUSED PASSED", ["opened 0 1"]),
    "right, refused, wrong": ("PASSED REFUSED REFUSED MISSING", ["closed 0 1", "opened 2 3", "broke 0 3 over 1,2"]),
    "wrong, refused, right": ("MISSING REFUSED PASSED", ["closed 0 1", "opened 1 2", "mended 0 2 over 1"]),
    "right, refused, right": ("PASSED REFUSED PASSED", ["closed 0 1", "opened 1 2"]),
}


@pytest.mark.parametrize(("outcomes", "told"), HISTORIES.values(), ids=HISTORIES)
def test_what_became_of_a_case(outcomes: str, told: list[str]) -> None:
    tried: list[tuple[str, Verdict]] = [
        (str(version), verdict(RIGHT, Outcome(outcome))) for version, outcome in enumerate(outcomes.split())
    ]
    found = changes(tried)
    over = [f" over {','.join(one.refused)}" if one.refused else "" for one in found]
    said = [f"{one.kind} {one.old} {one.new}{more}" for one, more in zip(found, over, strict=True)]
    assert said == told


# --- what lies in a folder


def test_versions_are_in_the_order_of_versions_and_not_of_letters_or_typing(tmp_path: Path) -> None:
    folders = [unpack(tmp_path, version) for version in ("2.20.2", "2.9.0", "2.21.0rc1", "2.14.1+cu13")]
    assert [one.version for one in unpacked.every(folders)] == ["2.9.0", "2.14.1+cu13", "2.20.2", "2.21.0rc1"]


@pytest.mark.parametrize("devices", (0, 1))
def test_who_names_an_unpacked_transformer_engine_means_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int
) -> None:
    monkeypatch.setattr(installed, "cuda_devices", lambda: devices)
    listed, unpacked_ = ("list", "--matrix", "smoke"), te(unpack(tmp_path, "2.17.1"))
    assert typed(*listed).out.startswith("torch:")
    assert typed(*listed, *unpacked_).out.startswith("te:")
    # Not torch in its place, and green.
    done = typed("run", "--matrix", "smoke", *unpacked_, "--device", "cpu", "--output", str(tmp_path / "out"))
    assert (done.code, done.out) == (2, "")
    assert "provider te cannot run: it needs a CUDA device" in done.err


def test_nobody_who_bisects_is_sent_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "cuda_devices", lambda: 0)
    made = te(unpack(tmp_path, "2.17.1"), unpack(tmp_path, "2.20.2"))
    done = typed("bisect", "--case", RIGHT, *made)
    assert done.code == 2
    assert "do this where it can" in done.err
    assert "torch" not in done.err.replace(str(tmp_path), "")


def test_it_stands_in_for_transformer_engine_alone(tmp_path: Path) -> None:
    other = Candidate(name="mine", summary="", apis={}, distribution="my-kernels")
    assert "my-kernels is not installed" in installed.closed(other, Unpacked("2.17.1", tmp_path))


BAD: dict[str, tuple[str, str]] = {
    "nothing there": ("run --te nowhere", "found nothing of that name"),
    "a file": ("run --te file", "found a file"),
    "a folder of something else": ("run --te empty", "found no transformer_engine/ in it"),
    "the package itself": ("run --te 2.17.1/transformer_engine", "found no transformer_engine/ in it"),
    "no metadata": ("run --te bare", "transformer_engine/ and no dist-info of transformer-engine beside it"),
    "two versions in one folder": ("run --te both", "transformer_engine/ and 2 dist-info of transformer-engine"),
    "a version that is none": ("run --te odd", "a dist-info that says Version: nightly, which is none"),
    "metadata in letters that are none": ("run --te torn", "found a dist-info that cannot be read ('utf-8' codec"),
    "one version twice": ("run --te 2.17.1 --te again", "expected a version that no other --te has, found 2.17.1"),
    "versions of what is not on trial": (
        "run --provider torch --te 2.17.1 --te 2.18.0",
        "expected a provider that uses it, found torch",
    ),
    "a version of what is not on trial": (
        "run --provider torch --te 2.17.1",
        "expected a provider that uses it, found torch",
    ),
    "a version beside a case of torch": (
        "run --case torch:api=loop --te 2.17.1",
        "expected a provider that uses it, found torch",
    ),
    "a folder that is there": (
        f"run --case {RIGHT} --te 2.17.1 --te 2.18.0 --output out",
        "out/2.18.0 is there already, and stays as it is",
    ),
    "a bisection of one": (f"bisect --case {RIGHT} --te 2.17.1", "expected two versions or more, found 1"),
    "a bisection of torch": (
        "bisect --case torch:api=loop --te 2.17.1 --te 2.18.0",
        "expected a provider that uses it, found torch",
    ),
    "a bisection of what is excluded": (
        "bisect --case te:api=op_mlp:path=native --te 2.17.1 --te 2.18.0",
        "expected a case that can run",
    ),
    "a bisection into a format that there is not": (
        f"bisect --case {RIGHT} --te 2.17.1 --te 2.18.0 --format xml",
        "unknown format 'xml': expected text or json",
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name, version in {"2.17.1": "2.17.1", "again": "2.17.1", "2.18.0": "2.18.0", "odd": "nightly"}.items():
        unpack(folder, version).rename(folder / name)
    shutil.copytree(folder / "2.17.1", folder / "bare", ignore=shutil.ignore_patterns("*.dist-info"))
    shutil.copytree(folder / "2.17.1", folder / "both")
    shutil.copytree(
        folder / "2.18.0" / "transformer_engine-2.18.0.dist-info",
        folder / "both" / "transformer_engine-2.18.0.dist-info",
    )
    unpack(folder, "2.19.0").rename(folder / "torn")
    (folder / "torn" / "transformer_engine-2.19.0.dist-info" / "METADATA").write_bytes(b"Version: \xff\n")
    (folder / "file").touch()
    (folder / "empty").mkdir()
    (folder / "out" / "2.18.0").mkdir(parents=True)
    return folder


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(("command", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_run_is_said_before_anything_is(
    folders: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(folders)
    done = typed(*command.split(), *(["--device", "cpu"] if "--case te" in command else []))
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_the_variable_names_several_as_path_does(folders: Path) -> None:
    done = child("run", GRADCHECK_TE=f"{folders / '2.17.1'}:{folders / 'again'}")
    assert (done.code, done.out) == (2, "")
    assert f"--te {folders / 'again'}: expected a version that no other --te has" in done.err


def test_an_empty_part_of_the_variable_is_told_as_what_it_is(folders: Path) -> None:
    done = child("run", GRADCHECK_TE=f"{folders / '2.17.1'}::{folders / '2.20.2'}")
    assert done.code == 2
    assert "--te .: expected a folder" in done.err
    assert "an empty part of GRADCHECK_TE, as in A::B, names the current folder" in " ".join(done.err.split())


# --- real workers


def test_a_worker_imports_from_it_first_and_so_does_what_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    job = Job(case=Case(provider="fake", api="where"), target="misbehaving:build")
    asked = Unpacked("2.17.1", tmp_path)
    with LocalExecutor(device="cpu", log_dir=tmp_path, engine="misbehaving:Engine", te=asked) as executor:
        ((_, seen),) = executor.run([job], lambda _: None, lambda _: None)
    assert seen.effective["says"] == f"{tmp_path} {tmp_path}:/mine"


CRASHES = """
def _die(*_, **__):
    import faulthandler, os
    faulthandler.enable()
    os.abort()
GroupedLinear.forward = _die
"""


@pytest.mark.usefixtures("on_a_cpu")
def test_a_matrix_under_two_versions_is_two_runs_and_a_table(tmp_path: Path) -> None:
    newer, older = unpack(tmp_path, "2.20.2"), unpack(tmp_path, "2.17.1")
    cases = [word for case in (NATIVE, LEGACY, RIGHT) for word in ("--case", case)]
    output = tmp_path / "out"
    done = typed("run", *te(newer, older), *cases, "--device", "cpu", "--quiet", "--output", str(output))
    assert done.code == 1
    table = done.out.partition("under 2 versions of Transformer Engine")[2]
    rows = [line.split() for line in table.splitlines() if "path=" in line]
    assert rows == [["path=native", "MISSING", "PASSED"], ["path=legacy", "MISSING", "REFUSED"]]
    assert "the same under every version: 1 of 3 cases, 1 PASSED" in table
    assert f"| `{NATIVE}` | MISSING | PASSED |" in (output / "versions.md").read_text("utf-8")
    written = json.loads((output / "versions.json").read_text("utf-8"))
    jsonschema.validate(written, schema.schema("versions"))
    assert [(side["version"], side["exit_code"]) for side in written["sides"]] == [("2.17.1", 1), ("2.20.2", 0)]
    for version in ("2.17.1", "2.20.2"):
        report = json.loads((output / version / "report.json").read_text("utf-8"))
        assert report["environment"]["versions"]["transformer_engine"] == version
        report["run"]["command"] = []
        seen = (output / version / "observations.jsonl").read_text("utf-8")
        assert str(tmp_path) not in json.dumps(report) + seen
    assert "mended" in typed("diff", str(output / "2.17.1"), str(output / "2.20.2")).out


@pytest.mark.usefixtures("on_a_cpu")
def test_a_version_that_cannot_be_imported_and_one_that_crashes_cost_their_own_column(tmp_path: Path) -> None:
    broken = unpack(tmp_path, "2.16.1", more="raise ImportError('undefined symbol')\n")
    crashes, right = unpack(tmp_path, "2.17.1", more=CRASHES), unpack(tmp_path, "2.18.0")
    output = tmp_path / "out"
    command = ["run", *te(broken, crashes, right), "--case", RIGHT, "--device", "cpu", "--quiet"]
    done = typed(*command, "--output", str(output))
    assert done.code == 3
    text = (output / "versions.md").read_text("utf-8")
    assert f"| `{RIGHT}` | - | CRASHED | PASSED |" in text
    assert "undefined symbol" in text
    seen = (output / "2.17.1" / "observations.jsonl").read_text("utf-8")
    assert 'File \\"transformer_engine/pytorch/__init__.py\\"' in seen
    assert str(tmp_path) not in text + seen


CTRL_C = """
def _wait(*_, **__):
    import os, signal, time
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
GroupedLinear.forward = _wait
"""


@pytest.mark.usefixtures("on_a_cpu")
def test_ctrl_c_ends_all_runs_and_the_table_says_which_there_were(tmp_path: Path) -> None:
    made = [unpack(tmp_path, "2.17.1"), unpack(tmp_path, "2.18.0", more=CTRL_C), unpack(tmp_path, "2.19.0")]
    output = tmp_path / "out"
    # A shell may have told its background jobs to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = typed("run", *te(*made), "--case", RIGHT, "--device", "cpu", "--quiet", "--output", str(output))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 130
    assert f"| `{RIGHT}` | PASSED | UNTESTED | - |" in (output / "versions.md").read_text("utf-8")
    assert "\n2.19.0: the run was interrupted before it\n" in done.out
    assert not (output / "2.19.0").exists()


def test_what_else_is_not_the_same_stands_beside_each_version() -> None:
    report = next(iter(recorded(lambda case: case == SEED).values()))
    sides = [
        Side(version=version, environment=Environment(versions={"transformer_engine": version, "cublaslt": cublaslt}))
        for version, cublaslt in (("2.17.1", "13.1.0"), ("2.20.2", "13.5.0"))
    ]
    text = versions_told.markdown(Versions(run=report.run, sides=sides, rows=[], same={"PASSED": 1}, exit_code=0))
    assert "- 2.17.1: cublaslt 13.1.0\n- 2.20.2: cublaslt 13.5.0\n" in text


@pytest.mark.usefixtures("on_a_cpu")
def test_a_worker_that_imported_another_version_ends_the_run(tmp_path: Path) -> None:
    other = unpack(tmp_path, "2.18.0", says="2.17.1")
    done = typed("run", *te(other), "--case", RIGHT, "--device", "cpu", "--output", str(tmp_path / "out"))
    assert done.code == 3
    assert f"expected the worker to import Transformer Engine 2.18.0 from {other}, found 2.17.1" in done.err


HOOK = """
import sys
from importlib.machinery import PathFinder


class First:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{!r}]) if name == "transformer_engine" else None


sys.meta_path.insert(0, First)
"""


@pytest.mark.usefixtures("on_a_cpu")
def test_the_code_of_another_folder_under_the_version_of_this_one_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of an editable install that finds its code by a hook: a version is read from metadata, and is the right one.
    asked, other = unpack(tmp_path, "2.18.0"), unpack(tmp_path / "source", "2.17.1", says="2.18.0")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK.format(str(other)), "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(hooks))
    done = typed("run", *te(asked), "--case", RIGHT, "--device", "cpu", "--output", str(tmp_path / "out"))
    assert done.code == 3
    assert f"expected the worker to import Transformer Engine from {asked}; it was imported from elsewhere" in done.err
    assert f"found {other}/transformer_engine" in done.err


def test_a_fault_that_integers_and_random_data_show_stands_once_in_a_cell() -> None:
    wrong = verdict(RIGHT, Outcome.INEXACT)
    (finding,) = wrong.findings
    doubled = [
        type(finding)(slot=slot, outcome=outcome, why="", diagnosis=named)
        for slot, outcome, named in (
            ("wgrad[0]", Outcome.INEXACT, "doubled"),
            ("wgrad[1]", Outcome.INACCURATE, "doubled"),
            ("dgrad[0]", Outcome.INACCURATE, "doubled"),
            ("wgrad[0]", Outcome.INACCURATE, "bias missing"),
        )
    ]
    once = verdict(RIGHT, Outcome.INEXACT, findings=doubled)
    reports = recorded(lambda case: case == SEED)
    sides = {
        version: msgspec.structs.replace(reports[version], verdicts=[one])
        for version, one in (("2.17.1", once), ("2.20.2", verdict(RIGHT, Outcome.PASSED)))
    }
    (row,), _ = side_by_side(sides)
    assert row.results["2.17.1"].faults == [
        "wgrad INEXACT (doubled)",
        "dgrad INACCURATE (doubled)",
        "wgrad INACCURATE (bias missing)",
    ]
    assert same(once) == same(verdict(RIGHT, Outcome.INEXACT, findings=[doubled[0], *doubled[2:]]))


@pytest.mark.usefixtures("on_a_cpu")
def test_bisect_names_the_versions_between_which_a_case_was_mended(tmp_path: Path) -> None:
    made = [unpack(tmp_path, version) for version in ("2.20.2", "2.18.0", "2.20.0", "2.19.0")]
    done = typed("bisect", "--case", NATIVE, *te(*made), "--device", "cpu")
    assert done.code == 0
    assert "\nmended between 2.18.0 and 2.19.0: was wrong, and is right (MISSING -> PASSED)\n" in done.out
    assert "\nnot run: 2.20.0; " in done.out
    assert "\nran 3 of 4 versions, " in done.out


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(("case", "versions", "code"), ((LEGACY, "2.16.1 2.17.1", 1), (LEGACY, "2.19.0 2.20.2", 5)))
def test_what_is_the_same_under_every_version_is_a_finding_or_nothing_executed(
    tmp_path: Path, case: str, versions: str, code: int
) -> None:
    made = [unpack(tmp_path, version) for version in versions.split()]
    done = typed("bisect", "--case", case, *te(*made), "--device", "cpu", "--format", "json")
    assert done.code == code
    found = json.loads(done.out)
    jsonschema.validate(found, schema.schema("bisection"))
    assert (found["changes"], found["versions"]) == ([], versions.split())


def test_what_else_is_not_the_same_is_told_beside_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    tried = [
        Tried(
            version=version,
            verdict=verdict(RIGHT, outcome),
            environment=Environment(versions={"transformer_engine": version, "cublaslt": cublaslt, "torch": "2.11"}),
        )
        for version, outcome, cublaslt in (("2.20.2", Outcome.PASSED, "13.5.0"), ("2.17.1", Outcome.INEXACT, "13.1.0"))
    ]
    found = Bisection(
        gradcheck="1", case=RIGHT, versions=["2.17.1", "2.20.2"], tried=tried, not_run=[], seconds=1.0,
        changes=[Change(kind="mended", old="2.17.1", new="2.20.2")],
    )  # fmt: skip
    bisection_told.show(found, "text", Console(color_system=None))
    said = capsys.readouterr().out
    assert "cublaslt is not the same either: 13.1.0 under 2.17.1, 13.5.0 under 2.20.2\n" in said
    assert "torch is not" not in said


ONCE = """
import pathlib

if (counted := pathlib.Path({!r})).exists():
    def GroupedLinear(**_): raise RuntimeError("now and then")
counted.touch()
"""


@pytest.mark.usefixtures("on_a_cpu")
def test_what_comes_and_goes_under_a_version_is_no_change_between_versions(tmp_path: Path) -> None:
    made = [unpack(tmp_path, "2.17.1", more=ONCE.format(str(tmp_path / "counted"))), unpack(tmp_path, "2.20.2")]
    done = typed("bisect", "--case", NATIVE, *te(*made), "--device", "cpu")
    assert (done.code, done.out) == (3, "")
    assert "Transformer Engine 2.17.1 makes something else of" in done.err
    assert "wgrad MISSING (none); and once more case RAISED (RuntimeError)" in done.err


@pytest.mark.usefixtures("on_a_cpu")
def test_a_version_that_cannot_be_run_ends_a_bisection_and_is_named(tmp_path: Path) -> None:
    broken = unpack(tmp_path, "2.16.1", more="raise ImportError('undefined symbol')\n")
    done = typed("bisect", "--case", RIGHT, *te(broken, unpack(tmp_path, "2.17.1")), "--device", "cpu")
    assert done.code == 3
    assert "Transformer Engine 2.16.1 cannot be run here, and says neither right nor wrong: leave it out" in done.err


def test_doctor_looks_at_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "cuda_devices", lambda: 1)
    monkeypatch.setattr(plugins, "candidates", lambda: {"te": plugins.BUILT_IN["te"]})
    made = [unpack(tmp_path, version) for version in ("2.20.2", "2.16.1")]
    out = typed("doctor", "--device", "cpu", *te(*made)).out
    assert re.findall(r"transformer_engine (\S+)", out) == ["2.16.1", "2.20.2"]


def test_the_readme_says_of_the_recorded_versions_what_was_recorded() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("\n## Versions side by side\n")[2].partition("\n## ")[0]
    (named,) = re.findall(r"^\| cells with \| (.*) \|$", section, flags=re.MULTILINE)
    assert named.split(" | ") == list(RECORDED)
    told = dict(re.findall(r"^\| `([\w=:]+)` \| (.*) \|$", section, flags=re.MULTILINE))
    verdicts = [report.verdicts for report in recorded(lambda _: True).values()]
    cells = [{one.case for one in verdicts[0] if _has(one, axes)} for axes in told]
    assert set().union(*cells) == {one.case for one in verdicts[0]}
    for axes, outcomes in told.items():
        found = [{one.outcome.value for one in report if _has(one, axes)} for report in verdicts]
        assert [{outcome} for outcome in outcomes.split(" | ")] == found, axes


def _has(one: Verdict, axes: str) -> bool:
    return all(str(one.axes[name]) == value for name, value in (part.split("=") for part in axes.split(":")))


# --- one case, under one version that is not installed


@pytest.mark.usefixtures("on_a_cpu")
def test_a_script_and_the_smallest_case_are_made_under_the_version_that_is_named(tmp_path: Path) -> None:
    faulty, right = unpack(tmp_path, "2.17.1"), unpack(tmp_path, "2.20.2")
    shown = typed("script", LEGACY, *te(faulty), "--device", "cpu", "--output", str(tmp_path / "shown.py"))
    assert (shown.code, "fails 3 of 3, the variant with single_grouped_weight=0 passes 3 of 3" in shown.out) == (
        0,
        True,
    )
    assert "transformer_engine 2.17.1" in (tmp_path / "shown.py").read_text("utf-8")
    smallest = typed("minimise", LEGACY, *te(faulty), "--device", "cpu", "--max-runs", "3")
    assert smallest.code == 0
    assert "single_grouped_weight=1" in smallest.out
    passes = typed("script", RIGHT, *te(right), "--device", "cpu")
    assert (passes.code, "is PASSED" in passes.err) == (2, True)


@pytest.mark.parametrize("command", ("script", "minimise"))
def test_a_case_fails_under_one_version(command: str, tmp_path: Path) -> None:
    done = typed(command, LEGACY, *te(unpack(tmp_path, "2.17.1"), unpack(tmp_path, "2.20.2")))
    assert done.code == 2
    assert "expected one version, found 2.17.1 and 2.20.2; name the one under which the case fails" in done.err
