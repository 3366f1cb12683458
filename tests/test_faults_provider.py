"""Is every layer that is wrong on purpose judged red, and told how it ended? In process, and in workers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from in_process import engine, verdict

from gradcheck_cli import listing, pipeline, plugins, selection
from gradcheck_cli.compute.faults.chance import CHANCE
from gradcheck_cli.compute.faults.endings import END
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.battery import APIS, MUTANTS
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.chances import CHANCES
from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.roles import OF_A_CHAIN
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.workers.executor import LocalExecutor

SMALL = "bias=1:m_splits=5,0,0,9,7:in_features=16:out_features=24"
PACKED = f"single_grouped_weight=1:{SMALL}"
# The first of these to which the mutant of a fault can be applied is the case for its layer.
SUITABLE = (
    SMALL,
    f"fuse_wgrad_accumulation=1:{SMALL}",
    f"dtype=fp16:{SMALL}",
    "dtype=fp16:bias=1:m_splits=1003,3:in_features=16:out_features=24:microbatches=1:grad_output=expanded",
    f"fuse_wgrad_accumulation=1:overwrite_main_grad=all:{SMALL}",
    f"fuse_wgrad_accumulation=1:delay_wgrad_compute=1:{SMALL}",
    f"fuse_wgrad_accumulation=1:zero_out_wgrad=1:{SMALL}",
    f"fuse_wgrad_accumulation=1:grad_added_to_main_grad=absent:{SMALL}",
    f"frozen_weights=last:{SMALL}",
    f"frozen_input=1:frozen_bias=1:{SMALL}",
    f"padded_tail=large:{SMALL}",
    f"tied_weights=1:{SMALL}",
    f"optimizer=sgd:{SMALL}",
    f"optimizer=sgd:frozen_weights=last:{SMALL}",
)
FAULTY = [api for api in APIS if api not in {*ENDINGS, *CHANCES}]


@cache
def applied(axes: str) -> set[str]:
    """The mutants that change what is seen of the right layer."""
    job = pipeline.job(Case.parse(f"torch:api=loop:{axes}"), "all")
    return {phase.mutant for channel in engine(job.target).run(job).channels for phase in channel.phases}


def of_fault(api: str, axes: str) -> Verdict:
    return verdict(f"faults:api={api}:{axes}")


@pytest.mark.parametrize("api", FAULTY)
def test_a_layer_with_a_fault_is_red_as_the_fault_deserves(api: str) -> None:
    axes = next(axes for axes in SUITABLE if api in applied(axes))
    found = of_fault(api, axes)
    assert not found.outcome.green
    assert {finding.outcome for finding in found.findings} & set(MUTANTS[api].fault.deserves)
    assert found.roles[MUTANTS[api].role] is not Outcome.PASSED


@pytest.mark.parametrize("api", [api for api in FAULTY if MUTANTS[api].role == "wgrad"])
def test_a_packed_weight_with_a_fault_is_red_where_its_mutant_applies(api: str) -> None:
    outcomes = {finding.outcome for finding in of_fault(api, PACKED).findings}
    assert bool(outcomes & set(MUTANTS[api].fault.deserves)) is (api in applied(PACKED))


@pytest.mark.parametrize("api", ("bgrad_doubled", "fprop_bias_missing", "wgrad_in_grad"))
def test_a_fault_in_what_a_case_does_not_have_leaves_the_layer_right(api: str) -> None:
    assert of_fault(api, "in_features=16:out_features=24").outcome is Outcome.PASSED


def test_a_fault_in_one_role_leaves_the_others_right() -> None:
    found = of_fault("dgrad_doubled", SMALL)
    assert found.roles == {
        "fprop": Outcome.PASSED,
        "dgrad": Outcome.INEXACT,
        "wgrad": Outcome.PASSED,
        "bgrad": Outcome.PASSED,
    }


def test_every_fault_of_a_layer_and_every_ending_is_an_api() -> None:
    assert plugins.candidate("faults").apis.keys() == set(APIS) == {*FAULTY, *END, *CHANCE}
    assert ENDINGS.keys() == END.keys()
    assert CHANCES.keys() == CHANCE.keys()
    layer = {name for name, one in MUTANTS.items() if one.role not in OF_A_CHAIN}
    assert layer - set(APIS) == {f"{role}_unobserved" for role in ("fprop", "dgrad", "wgrad", "bgrad")}


def test_a_run_has_no_faults_unless_they_are_asked_for() -> None:
    assert "faults" not in plugins.candidates()
    for provider in (["auto"], ["torch"], ["te"]):
        cases = selection.select(selection.Asked(matrix="smoke", provider=provider)).cases
        assert {case.provider for case in cases} & {"faults"} == set()


def test_faults_that_are_asked_for_get_the_cases_of_a_matrix() -> None:
    selected = selection.select(selection.Asked(matrix="smoke", provider=["faults"]))
    assert {case.api for case in selected.cases} == set(APIS)
    one = selection.select(selection.Asked(provider=["faults"], expression="api=wgrad_doubled and dtype=bf16"))
    assert {str(case).split(":")[1] for case in one.cases} == {"api=wgrad_doubled"}


def test_a_case_of_a_fault_can_be_named() -> None:
    (case,) = selection.select(selection.Asked(case=["faults:api=hang"])).cases
    assert matrix.excluded(case) is None
    assert listing.contract("faults:api=hang")[0] == "faults:api=hang"


def test_faults_are_listed_among_the_providers_without_their_apis() -> None:
    listed = listing.plugins_in_words()
    assert [line.strip() for line in listed if f"{len(APIS)} apis" in line] == [
        f"{len(APIS)} apis: gradcheck list --provider faults --matrix smoke"
    ]
    assert not any("wgrad_doubled" in line for line in listed)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """The verdict on every ending, and on a right layer after them, from real workers."""
    logs: Path = tmp_path_factory.mktemp("logs")
    cases = [Case.parse(f"faults:api={name}:in_features=16:out_features=24") for name in ENDINGS]
    cases.append(Case.parse("torch:api=loop:in_features=16:out_features=24"))
    with LocalExecutor(device="cpu", log_dir=logs, timeout=3) as executor:
        seen = executor.run([pipeline.job(case) for case in cases], lambda _: None, lambda _: None)
        return {job.case.api: conclude(job.case, one, Environment()) for job, one in seen}


@pytest.mark.parametrize(
    ("name", "outcome", "diagnosis"),
    (
        ("segfault", Outcome.CRASHED, "signal 11 (SIGSEGV)"),
        ("abort", Outcome.CRASHED, "signal 6 (SIGABRT)"),
        ("hang", Outcome.TIMED_OUT, "time limit"),
        ("silent_exit", Outcome.CRASHED, "exit code 0"),
        ("killed", Outcome.CRASHED, "signal 9 (SIGKILL)"),
        ("hang_in_c", Outcome.TIMED_OUT, "time limit"),
        ("garbled", Outcome.CRASHED, "garbled answer"),
        ("orphans", Outcome.CRASHED, "signal 6 (SIGABRT)"),
        ("flood", Outcome.CRASHED, "signal 6 (SIGABRT)"),
    ),
)
def test_a_layer_that_ends_its_worker_is_told(
    ended: dict[str, Verdict], name: str, outcome: Outcome, diagnosis: str
) -> None:
    (finding,) = ended[name].findings
    assert (finding.outcome, finding.diagnosis) == (outcome, diagnosis)


@pytest.mark.parametrize("name", ("out_of_memory", "raises", "poisoned_context"))
def test_a_layer_that_raises_is_told_where(ended: dict[str, Verdict], name: str) -> None:
    (finding,) = ended[name].findings
    assert finding.outcome is Outcome.RAISED
    assert "forward of microbatch 0" in finding.why


def test_a_layer_that_raises_in_its_wgrad_is_told_where_and_is_right_where_nothing_asks_for_one(
    ended: dict[str, Verdict],
) -> None:
    (finding,) = ended["raises_in_wgrad"].findings
    assert finding.outcome is Outcome.RAISED
    assert "backward of microbatch 0" in finding.why
    assert of_fault("raises_in_wgrad", "frozen_weights=all").outcome is Outcome.PASSED


def test_a_right_layer_is_right_after_all_of_them(ended: dict[str, Verdict]) -> None:
    assert ended["loop"].outcome is Outcome.PASSED
    assert len(ended) == len(ENDINGS) + 1
