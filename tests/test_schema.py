"""Do the published JSON Schemas describe what gradcheck writes?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gradcheck_cli.judge.difference import difference
from gradcheck_cli.judge.rules import explain
from gradcheck_cli.records import schema
from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import ChannelSeen, Deviation, Observation, PhaseSeen, Raised, SlotSeen
from gradcheck_cli.records.report import Closed, Finished, Opened, Report, Run, Seen, Started, tally
from gradcheck_cli.records.rounding import Rounding
from gradcheck_cli.records.verdict import Finding, Margin, Mutants, Outcome, Verdict
from gradcheck_cli.records.versions import Bisection, Change, Result, Row, Side, Tried, Versions
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reproduce.minimise import Budget, minimise

FOLDER = Path(__file__).parent.parent / "schemas"

CASE = Case(provider="te", api="module", m_splits="64,0,128", num_gemms=3)
RUN = Run(
    gradcheck="0.1.0", command=["gradcheck", "run"], started="2026-01-01T00:00:00Z", matrix="core", provider=["te"]
)
VERDICT = Verdict(
    case=str(CASE),
    axes=CASE.axes(),
    outcome=Outcome.MISSING,
    roles={"wgrad": Outcome.MISSING, "fprop": Outcome.PASSED},
    findings=[Finding(slot="wgrad[1]", outcome=Outcome.MISSING, why="expected a gradient, found None", experts=[1])],
    margins={"fprop": Margin(slot="fprop[0]", ratio=0.97, after_rounding=0.1)},
    effective={"path": "legacy"},
    mutants=Mutants(killed=19, of=19, smallest_epsilon=0.004),
)
SLOT = SlotSeen(
    role="wgrad",
    expert=1,
    buffer="main_grad",
    present=True,
    shape=(96, 64),
    dtype="fp32",
    contents={
        "prefill+sum": Deviation(compared=1, differing=1, largest_error=2.0, worst=(0, 0), expected=3.0, found=1.0)
    },
    added_flag=True,
)
OBSERVATION = Observation(
    case=str(CASE),
    ending="raised",
    channels=[ChannelSeen(fill="exact", phases=[PhaseSeen(microbatch=0, phase="backward", slots=[SLOT])])],
    raised=Raised(type="RuntimeError", message="no kernel", during="backward", traceback=""),
)
ENVIRONMENT = Environment(versions={"torch": "2.13.0"}, compute_capability=(9, 0))
JOB = Job(
    case=CASE,
    target="module:build",
    rounding={
        "fprop": Rounding(
            store=2**-8,
            floor=0.0,
            buffer=0.0,
            accumulate=2**-24,
            linear=False,
            operands=0.0,
            lambda_=4.0,
            rounds_before_adding=False,
        )
    },
)
REPORT = Report(run=RUN, environment=ENVIRONMENT, tally=tally([VERDICT]), verdicts=[VERDICT], seconds=1.5, exit_code=1)

RECORDED = FOLDER.parent / "reports"
OLD, NEW = (read(RECORDED / f"te-{version}-h200" / "core-cublas-13.5") for version in ("2.17.1", "2.20.2"))
RESULTS = {"2.17.1": Result(outcome=Outcome.MISSING, faults=["wgrad MISSING (none)"])}
VERSIONS = Versions(
    run=RUN,
    sides=[Side(version="2.17.1", exit_code=1, tally=REPORT.tally, environment=ENVIRONMENT), Side(version="2.18.0")],
    rows=[Row(case=str(CASE), axes=CASE.axes(), results=RESULTS)],
    same={"PASSED": 2},
    exit_code=1,
)
BISECTION = Bisection(
    gradcheck="0.1.0",
    case=str(CASE),
    versions=["2.17.1", "2.18.0"],
    tried=[Tried(version="2.17.1", verdict=VERDICT, environment=ENVIRONMENT)],
    changes=[Change(kind="mended", old="2.17.1", new="2.18.0")],
    not_run=["2.18.0"],
    seconds=1.5,
)
SAMPLES: dict[str, tuple[str, Record]] = {
    "an explanation": ("explanation", explain(OLD)),
    "a difference": ("difference", difference(OLD, NEW, {})),
    "versions": ("versions", VERSIONS),
    "a bisection": ("bisection", BISECTION),
    "a trail": ("minimised", minimise(CASE, VERDICT, lambda _: VERDICT, Budget(3, 9.0), lambda: 0.0, lambda _: None)),
    "a job": ("job", JOB),
    "an observation": ("observation", OBSERVATION),
    "a verdict": ("verdict", VERDICT),
    "a report": ("report", REPORT),
    "journal: run": ("journal-line", Opened(run=RUN)),
    "journal: environment": ("journal-line", Seen(environment=ENVIRONMENT)),
    "journal: started": ("journal-line", Started(case=str(CASE), axes=CASE.axes())),
    "journal: verdict": ("journal-line", Finished(verdict=VERDICT)),
    "journal: closed": ("journal-line", Closed(seconds=1.5, exit_code=1)),
}


def published(name: str) -> Any:
    """One schema as it lies in the repository."""
    return json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", schema.PUBLISHED)
def test_the_published_schema_is_the_one_of_the_records(name: str) -> None:
    found = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert found == schema.text(name), "the records have changed: run `make schemas` and read the difference"


def test_every_published_schema_has_a_record_behind_it() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{name}.schema.json" for name in schema.PUBLISHED}


@pytest.mark.parametrize("name", schema.PUBLISHED)
def test_a_published_schema_is_a_valid_schema_itself(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(published(name))


@pytest.mark.parametrize(("name", "record"), SAMPLES.values(), ids=SAMPLES)
def test_what_gradcheck_writes_validates(name: str, record: Record) -> None:
    errors = jsonschema.Draft202012Validator(published(name)).iter_errors(json.loads(to_json(record)))
    assert [error.message for error in errors] == []


@pytest.mark.parametrize(("name", "record"), SAMPLES.values(), ids=SAMPLES)
def test_a_file_of_another_schema_version_is_refused(name: str, record: Record) -> None:
    other = {**msgspec.to_builtins(record), "schema": 99}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(other, published(name))


WRONG: dict[str, dict[str, Any]] = {
    "an outcome that does not exist": {"outcome": "FINE"},
    "a role that does not exist": {"roles": {"xgrad": "PASSED"}},
    "a field that does not exist": {"verdict": "PASSED"},
    "a field of another type": {"seconds": "fast"},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_the_schema_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(to_json(VERDICT)), **change}, published("verdict"))


def test_the_command_writes_every_schema(tmp_path: Path) -> None:
    files = schema.publish(tmp_path / "new")
    assert [file.read_text(encoding="utf-8") for file in files] == [schema.text(name) for name in schema.PUBLISHED]
