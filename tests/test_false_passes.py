"""Is gradcheck fooled by what has fooled harnesses of its kind? One test for each mechanism that really happened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
import torch
from commands import child, typed
from faulty_layers import FaultyLayer, faulty
from in_process import CPU, observed, seen_by
from policies import seen
from report_samples import every_outcome

from gradcheck_cli import pipeline
from gradcheck_cli.compute.provider import Builder
from gradcheck_cli.compute.reference import Reference, compute, prepare
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import expected
from gradcheck_cli.records.base import from_json, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import FILLS, POISON_BYTES, Fill, Observation, PhaseSeen, SlotSeen
from gradcheck_cli.records.report import exit_code
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters import junit
from gradcheck_cli.workers.executor import LocalExecutor

# Expert 2 has tokens in no microbatch; in_features and out_features are equal, so that any gradient fits anywhere.
CASE = "torch:api=loop:bias=1:m_splits=5,0,0,9,7:in_features=16:out_features=16"
FUSED = f"{CASE}:fuse_wgrad_accumulation=1"
# One product is one sum of 64, and its fp32 output holds an error of a hundredth of its bound.
FP32 = "torch:api=loop:dtype=fp32:m_splits=5,0,9:in_features=64:out_features=24:microbatches=1"
# grouped_mm raises in its backward where grad_output is expanded.
RAISES = "torch:api=grouped_mm:grad_output=expanded"
ANYTHING_BUT_PASSED = [outcome for outcome in Outcome if outcome is not Outcome.PASSED]


def judged(case: str, found: Observation, only: Fill | None = None) -> Verdict:
    return conclude(Case.parse(case), seen_by(found, only) if only else found, CPU)


def verdict(case: str, build: Builder, only: Fill | None = None) -> Verdict:
    """The verdict on another candidate in the place of the loop."""
    return judged(case, seen(case, build), only)


def with_phases(found: Observation, alter: Callable[[PhaseSeen], PhaseSeen | None]) -> Observation:
    """The observation with phases altered, or left out, in every channel."""
    channels = [
        msgspec.structs.replace(channel, phases=[one for one in map(alter, channel.phases) if one])
        for channel in found.channels
    ]
    return msgspec.structs.replace(found, channels=channels)


def with_slots(found: Observation, keep: Callable[[SlotSeen], bool]) -> Observation:
    """The observation with only those slots."""
    return with_phases(found, lambda p: msgspec.structs.replace(p, slots=[slot for slot in p.slots if keep(slot)]))


def test_01_two_gradients_that_are_none_are_not_equal_but_missing() -> None:
    found = judged(CASE, observed(CASE, "drop_wgrad"))
    assert (found.outcome, found.roles["wgrad"]) == (Outcome.MISSING, Outcome.MISSING)


@pytest.mark.parametrize("slot", sorted({slot.slot for slot in expected(Case.parse(CASE))}))
def test_02_a_gradient_that_nobody_observed_is_untested_and_no_warning(slot: str) -> None:
    found = judged(CASE, with_slots(observed(CASE), lambda one: one.slot != slot))
    assert (found.outcome, {finding.slot for finding in found.findings}) == (Outcome.UNTESTED, {slot})


@pytest.mark.parametrize("experts", (0, 1, 4))
def test_03_a_list_that_ends_early_does_not_end_the_comparison(experts: int) -> None:
    found = judged(CASE, with_slots(observed(CASE), lambda one: one.expert < experts))
    assert set(found.roles.values()) == {Outcome.UNTESTED}
    assert {expert for finding in found.findings for expert in finding.experts} == set(range(experts, 5))


@pytest.mark.parametrize("lost", (0, 1))
def test_04_what_only_one_side_has_is_compared_too(lost: int) -> None:
    found = judged(CASE, with_phases(observed(CASE), lambda phase: None if phase.microbatch == lost else phase))
    assert set(found.roles.values()) == {Outcome.UNTESTED}


def test_05_what_was_not_verified_is_no_success_in_junit() -> None:
    report = every_outcome()
    testcases = ET.fromstring(junit.text(report)).iter("testcase")  # noqa: S314  our own text
    silent = [
        verdict.outcome for verdict, testcase in zip(report.verdicts, testcases, strict=True) if not len(testcase)
    ]
    assert silent == [Outcome.PASSED]


@pytest.mark.parametrize("case", (CASE, FUSED), ids=("unfused", "fused"))
def test_06_a_first_expert_that_is_right_answers_for_no_other(case: str) -> None:
    def only_the_first(wgrad: torch.Tensor, _: FaultyLayer) -> torch.Tensor:
        wgrad[1:] *= 2
        return wgrad

    found = verdict(case, faulty(wgrad=only_the_first))
    assert found.outcome is Outcome.INEXACT
    assert {expert for finding in found.findings for expert in finding.experts} == {1, 3, 4}


# What a candidate hands back instead of a gradient: the tensors that it was given, of the right shape.
HANDED_BACK: dict[str, Builder] = {
    "x as its own dgrad": faulty(dgrad=lambda _, layer: layer.x.clone()),
    "grad_output as dgrad": faulty(dgrad=lambda _, layer: layer.g.clone()),
    "x as the output": faulty(fprop=lambda _, layer: layer.x.clone()),
    "the weights as wgrad": faulty(wgrad=lambda _, layer: layer.w.clone()),
}


@pytest.mark.parametrize("build", HANDED_BACK.values(), ids=HANDED_BACK)
def test_07_a_tensor_that_was_handed_in_is_not_compared_with_itself(build: Builder) -> None:
    assert verdict(CASE, build).outcome is Outcome.INEXACT


def test_07_a_prefill_that_was_handed_in_is_not_compared_with_itself() -> None:
    assert judged(FUSED, observed(FUSED, "drop_wgrad_but_say_so")).roles["wgrad"] is Outcome.MISSING


def test_07_a_candidate_that_overwrites_what_it_was_given_does_not_change_what_is_right() -> None:
    def overwritten(y: torch.Tensor, layer: FaultyLayer) -> torch.Tensor:
        layer.w.fill_(1.0)
        return layer.x @ layer.w[0].T

    assert verdict(CASE, faulty(fprop=overwritten)).roles["fprop"] is Outcome.INEXACT


@pytest.mark.parametrize("case", (CASE, FUSED), ids=("unfused", "fused"))
def test_08_a_tolerance_that_is_handed_on_is_the_one_that_is_used(case: str) -> None:
    job = pipeline.job(Case.parse(case))
    none = {"store": 0.0, "floor": 0.0, "buffer": 0.0, "accumulate": 0.0}
    strict = {role: msgspec.structs.replace(one, **none) for role, one in job.rounding.items()}
    without = judged(case, seen(case, faulty(), rounding=strict), only="normal")
    with_it = judged(case, seen(case, faulty(), rounding=job.rounding), only="normal")
    assert (without.outcome, with_it.outcome) == (Outcome.INACCURATE, Outcome.PASSED)


@pytest.mark.parametrize(("share", "outcome"), ((0.97, Outcome.PASSED), (1.03, Outcome.INACCURATE)))
def test_09_the_tolerance_that_is_documented_is_the_one_that_is_used(share: float, outcome: Outcome) -> None:
    def off(y: torch.Tensor, layer: FaultyLayer) -> torch.Tensor:
        x, w = layer.x[-1].double(), layer.w[-1, 2].double()
        right, u = x @ w, 2.0**-24
        bound = u * abs(right) + 4 * 64**0.5 * u * (x.abs() @ w.abs())
        y[-1, 2] = right + share * bound
        return y

    assert verdict(FP32, faulty(fprop=off), only="normal").outcome is outcome


def test_10_an_exact_comparison_that_fails_is_not_made_good_by_a_weaker_one() -> None:
    def off_on_integers(wgrad: torch.Tensor, layer: FaultyLayer) -> torch.Tensor:
        if len(layer.x.abs().unique()) < 8:  # a few integers, times a power of two
            wgrad[4] *= 2
        return wgrad

    found = seen(CASE, faulty(wgrad=off_on_integers))
    assert judged(CASE, found, only="normal").outcome is Outcome.PASSED
    assert judged(CASE, found).outcome is Outcome.INEXACT


def test_11_a_crash_leaves_its_case_among_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    jobs = [
        Job(case=Case(provider="fake", api=api), target="misbehaving:build") for api in ("fine", "segfault", "fine")
    ]
    with LocalExecutor(device="cpu", log_dir=tmp_path, engine="misbehaving:Engine") as executor:
        ran = list(executor.run(jobs, lambda _: None, lambda _: None))
    outcomes = [conclude(job.case, found, CPU).outcome for job, found in ran]
    # What did run said nothing of any gradient: that is no pass either.
    assert outcomes == [Outcome.UNTESTED, Outcome.CRASHED, Outcome.UNTESTED]


@pytest.mark.parametrize("outcome", [one for one in ANYTHING_BUT_PASSED if not one.green])
def test_12_one_finding_among_many_passes_is_exit_code_1(outcome: Outcome) -> None:
    passed = judged(CASE, observed(CASE))
    wrong = msgspec.structs.replace(passed, outcome=outcome)
    assert exit_code([passed] * 99 + [wrong], 0.5, interrupted=False, harness_failed=False) == 1


def test_12_a_finding_of_a_real_run_is_exit_code_1(tmp_path: Path) -> None:
    assert typed("run", "--case", RAISES, "--device", "cpu", "--output", str(tmp_path / "run")).code == 1


def test_13_a_run_without_a_case_is_exit_code_5(tmp_path: Path) -> None:
    done = typed("run", "--provider", "torch", "-k", "num_gemms=1048576", "--output", str(tmp_path / "run"))
    assert done.code == 5


@pytest.mark.parametrize("outcome", (Outcome.EXCLUDED, Outcome.REFUSED))
def test_13_a_run_that_left_nearly_everything_out_is_exit_code_5(outcome: Outcome) -> None:
    left_out = [msgspec.structs.replace(judged(CASE, observed(CASE)), outcome=outcome)] * 74
    passed = [] if outcome is Outcome.EXCLUDED else [judged(CASE, observed(CASE))]
    assert exit_code(left_out + passed, 0.5, interrupted=False, harness_failed=False) == 5


def test_14_what_a_uniform_grad_output_hides_is_said_beside_the_pass() -> None:
    expanded = f"{CASE}:grad_output=expanded"
    hidden, shown = judged(expanded, observed(expanded, "rolled_rows")), judged(CASE, observed(CASE, "rolled_rows"))
    assert (hidden.outcome, shown.outcome) == (Outcome.PASSED, Outcome.INEXACT)
    (note,) = hidden.notes
    assert "Invisible to this case" in note
    assert "rows that change places in a dgrad or a wgrad" in note


@pytest.mark.parametrize(("api", "kernel"), (("loop", "linear"), ("grouped_mm", "grouped_mm")))
def test_15_a_kernel_that_is_wrong_for_everybody_does_not_change_what_is_right(
    api: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(torch.nn.functional, kernel)
    monkeypatch.setattr(torch.nn.functional, kernel, lambda *args, **kwargs: 2 * right(*args, **kwargs))
    case = f"torch:api={api}:seed=15"  # neither its reference nor what was seen of it is left from another test
    assert set(judged(case, observed(case)).roles.values()) == {Outcome.INEXACT}


@pytest.mark.parametrize("fill", FILLS)
def test_15_the_reference_is_in_fp64_whatever_the_case_is_in(fill: Fill) -> None:
    roles = prepare(Case.parse(CASE), fill, torch.device("cpu")).roles
    assert {tensor.dtype for role in roles for exact in role.values() for tensor in exact[:3]} == {torch.float64}


@pytest.mark.parametrize("fault", ("legacy_in_the_first", "legacy_in_the_middle", "legacy_in_the_last"))
def test_16_another_path_than_the_one_that_was_asked_proves_nothing(fault: str) -> None:
    case = f"{CASE}:path=native:microbatches=3"
    assert judged(case, observed(case, fault)).outcome is Outcome.NOT_THE_CASE


def test_16_another_layout_than_the_one_that_was_asked_proves_nothing() -> None:
    case = f"{CASE}:single_grouped_weight=1"
    assert judged(case, observed(case, "discrete_after_all")).outcome is Outcome.NOT_THE_CASE


def tiny(case: Case, fill: Fill, device: torch.device) -> Reference:
    """Random data of which every wgrad is a few millionths."""
    found = prepare(case, fill, device)
    if fill != "normal":
        return found
    x, g = (tuple(one * 2.0**-10 for one in many) for many in (found.inputs.x, found.inputs.grad_output))
    return compute(case, dataclasses.replace(found.inputs, x=x, grad_output=g), fill)


@pytest.mark.parametrize(("error", "outcome"), ((0.0, Outcome.PASSED), (1e-6, Outcome.INACCURATE)))
def test_17_an_error_of_a_millionth_is_seen_where_the_gradients_are_that_small(
    error: float, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(wgrad: torch.Tensor, _: FaultyLayer) -> torch.Tensor:
        wgrad[4, 1, 2] += error
        return wgrad

    monkeypatch.setattr("gradcheck_cli.compute.engine.prepare", tiny)
    found = seen(CASE, faulty(wgrad=off))
    assert max(tiny(Case.parse(CASE), "normal", torch.device("cpu")).roles[0]["wgrad"].value.abs().flatten()) < 1e-4
    assert judged(CASE, found, only="normal").roles["wgrad"] is outcome


SOFTENING = {
    "CI": "true",
    "GITHUB_ACTIONS": "true",
    "FLA_CI_ENV": "1",
    "GRADCHECK_CI": "1",
    "GRADCHECK_LAMBDA": "1e9",
    "GRADCHECK_TOLERANCE": "1e9",
    "GRADCHECK_WARN_ONLY": "1",
    "PYTHONWARNINGS": "ignore",
    "NVTE_TEST_SKIP": "1",
}


def test_18_no_variable_softens_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    case = f"{CASE}:seed=18"
    wrong = faulty(dgrad=lambda dgrad, _: dgrad * 1.01)
    before = verdict(case, wrong)
    for name, value in SOFTENING.items():
        monkeypatch.setenv(name, value)
    after = verdict(case, wrong)
    assert after.outcome is Outcome.INEXACT
    assert (after.findings, after.margins, after.roles) == (before.findings, before.margins, before.roles)


def test_18_no_variable_softens_an_exit_code(tmp_path: Path) -> None:
    done = child("run", "--case", RAISES, "--device", "cpu", "--output", "run", cwd=tmp_path, **SOFTENING)
    assert done.code == 1


def held(pattern: str) -> Builder:
    """A candidate that never writes the wgrad of the expert without tokens; memory holds this pattern."""

    def unwritten(wgrad: torch.Tensor, _: FaultyLayer) -> torch.Tensor:
        if pattern == "stale":
            wgrad[2] = wgrad[4] + 1
        else:
            wgrad[2].view(torch.uint8).fill_(POISON_BYTES[pattern])
        return wgrad

    return faulty(wgrad=unwritten)


@pytest.mark.parametrize("pattern", (*POISON_BYTES, "stale"))
def test_19_memory_that_nobody_wrote_is_wrong_whichever_poison_it_held(pattern: str) -> None:
    found = verdict(CASE, held(pattern))
    assert found.outcome is (Outcome.NONFINITE if pattern == "0xFF" else Outcome.INEXACT)
    assert {expert for finding in found.findings for expert in finding.experts} == {2}


def test_19_poison_is_told_from_zeros_in_every_dtype() -> None:
    for byte in POISON_BYTES.values():
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            poisoned = torch.full((64,), byte, dtype=torch.uint8).view(dtype)
            assert bool(((poisoned.abs() > 1e4) | poisoned.isnan()).all())


@pytest.mark.parametrize("fault", ("raising_in_build", "raising_in_forward", "raising_in_backward"))
def test_20_an_exception_is_no_agreement(fault: str) -> None:
    found = judged(CASE, observed(CASE, fault))
    assert (found.outcome, set(found.roles.values())) == (Outcome.RAISED, {Outcome.RAISED})


def killed(found: Verdict) -> int:
    """How many mutants a verdict says were killed."""
    return found.mutants.killed if found.mutants else 0


def test_21_mutants_that_nobody_asked_for_are_not_claimed() -> None:
    found = judged(CASE, seen(CASE, faulty(), mutants=[]))
    assert (killed(found), found.mutants.of if found.mutants else 0) == (0, 0)


def test_21_mutants_that_were_asked_for_and_never_ran_are_not_claimed() -> None:
    asked = msgspec.structs.replace(seen(CASE, faulty(), mutants=[]), mutants=["wgrad_doubled", "dgrad_zeroed"])
    assert killed(judged(CASE, asked)) == 0


@pytest.mark.parametrize("fault", ("raising_in_build", "discrete_after_all"))
def test_21_a_case_that_did_not_run_claims_no_mutant(fault: str) -> None:
    case = f"{CASE}:single_grouped_weight=1"
    assert killed(judged(case, observed(case, fault))) == 0


def test_21_a_report_says_as_much_of_its_mutants_as_the_verdict() -> None:
    found = judged(CASE, seen(CASE, faulty(), mutants=[]))
    assert killed(from_json(to_json(found), Verdict)) == 0
