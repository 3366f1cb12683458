"""Does the oracle prove that it can fail? Mutants of what was seen, and a pass that they do not spoil."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from in_process import CPU, engine, verdict

from gradcheck_cli import pipeline, plugins, selection
from gradcheck_cli.compute import mutants
from gradcheck_cli.compute.faults.deliveries import DELIVERIES
from gradcheck_cli.compute.faults.values import VALUES
from gradcheck_cli.errors import UsageError
from gradcheck_cli.judge import accuracy
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.battery import FAULTS, MUTANTS, needed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import Observation, PhaseSeen
from gradcheck_cli.records.verdict import Outcome, Verdict

SMOKE = [
    str(case) for case in matrix.enumerate_cases(matrix.load("smoke"), [plugins.candidate("torch")], 0)
    if isinstance(case, Case)
]  # fmt: skip
UNFUSED = "torch:api=loop:bias=1:m_splits=5,0,0,9,7"
UNIFORM = "torch:api=loop:bias=1:grad_output=expanded"
MANY_TOKENS = "torch:api=loop:dtype=fp16:bias=1:m_splits=1000,3:microbatches=1:grad_output=expanded"
CHAIN = "torch:api=op_mlp:single_grouped_weight=1:fuse_wgrad_accumulation=1:m_splits=empty_middle"
CASES = (
    *SMOKE,
    UNFUSED,
    UNIFORM,
    MANY_TOKENS,
    "torch:api=loop:single_grouped_weight=1:fuse_wgrad_accumulation=1:bias=1:m_splits=hot",
    "torch:api=loop:fuse_wgrad_accumulation=1:dtype=fp16:bias=1:m_splits=5,0,0,9,7:microbatches=3",
    "torch:api=loop:dtype=fp16:m_splits=uneven:bias=1",
    "torch:api=loop:dtype=fp32:bias=1",
    "torch:api=loop:fuse_wgrad_accumulation=1:dtype=fp32:m_splits=empty_middle",
    "torch:api=loop:num_gemms=1:microbatches=1",
    "torch:api=loop:m_splits=1,0,0:in_features=3:out_features=5:bias=1",
    "torch:api=loop:fuse_wgrad_accumulation=1:overwrite_main_grad=all:zero_out_wgrad=1:bias=1:padded_tail=large",
    "torch:api=loop:fuse_wgrad_accumulation=1:grad_added_to_main_grad=absent:delay_wgrad_compute=1:frozen_input=1",
    "torch:api=loop:frozen_weights=all:frozen_bias=1:bias=1",
    "torch:api=loop:bias=1:m_splits=5,9:in_features=8:out_features=8:dtype=fp16:microbatches=16",
    "torch:api=loop:tied_weights=1:bias=1:m_splits=5,0,9:microbatches=3",
    "torch:api=loop:optimizer=sgd:frozen_weights=first:m_splits=5,0,9:microbatches=3",
    CHAIN,
    "torch:api=op_mlp:dtype=fp32:microbatches=3:tied_weights=1",
    "torch:api=op_mlp:fuse_wgrad_accumulation=1:zero_out_wgrad=1:grad_output=expanded",
    "torch:api=op_mlp:fuse_wgrad_accumulation=1:grad_added_to_main_grad=absent",
    "torch:api=op_mlp:dtype=fp16:fuse_wgrad_accumulation=1:overwrite_main_grad=some:m_splits=uneven",
)


@cache
def observed(case: str, mode: str = "all") -> Observation:
    job = pipeline.job(Case.parse(case), mode)
    return engine(job.target).run(job)


def judged(case: str, mode: str = "all") -> Verdict:
    return conclude(Case.parse(case), observed(case, mode), CPU)


def phases(case: str, mode: str = "all") -> list[PhaseSeen]:
    return [phase for channel in observed(case, mode).channels for phase in channel.phases if phase.mutant]


def applied(case: str) -> set[str]:
    return {phase.mutant for phase in phases(case)}


@pytest.mark.parametrize("case", CASES)
def test_every_mutant_is_rejected_as_it_deserves_or_changes_nothing(case: str) -> None:
    found = judged(case)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert [name for name in found.mutants.survived if MUTANTS[name].fault.required] == []
    assert found.mutants.of == len(applied(case)) == found.mutants.killed + len(found.mutants.survived)
    assert found.mutants.of + found.mutants.inapplicable == len(needed("all", Case.parse(case)))


def test_every_mutant_can_be_applied_to_some_case() -> None:
    assert set(MUTANTS) - set().union(*(applied(case) for case in CASES)) == set()


@pytest.mark.parametrize("case", CASES)
def test_a_pass_is_the_same_with_and_without_mutants_but_for_what_it_hides(case: str) -> None:
    bare, proved = judged(case, "none"), judged(case)
    assert bare.mutants is None
    # All that mutants may add to a pass is what its data does not show.
    more = [note for note in proved.notes if note not in bare.notes]
    assert [note for note in more if "data does not show" not in note] == []
    without = msgspec.structs.replace(proved, mutants=None, seconds=0, notes=bare.notes)
    assert without == msgspec.structs.replace(bare, seconds=0)


def test_the_battery_and_the_faults_name_the_same() -> None:
    assert {fault.name for fault in FAULTS if fault.kind == "value"} == set(VALUES)
    assert {fault.name for fault in FAULTS if fault.kind == "delivery"} == set(DELIVERIES)
    assert [fault.name for fault in FAULTS if fault.kind == "unseen"] == ["unobserved"]


def test_every_fault_has_a_name_of_its_own_and_cites_what_it_stands_for() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    cited = re.compile(r"[A-L][1-9][0-9]?|false pass ([1-9]|1[0-9]|2[01])")
    assert [fault.name for fault in FAULTS if not cited.fullmatch(fault.cites)] == []


def test_a_fault_deserves_what_no_gate_lets_pass() -> None:
    assert [fault.name for fault in FAULTS if not fault.deserves or any(one.green for one in fault.deserves)] == []


def test_the_default_subset_has_every_role_and_every_kind() -> None:
    layer = Case.parse(UNFUSED)
    fast = [MUTANTS[name] for name in needed("fast", layer)]
    assert {one.role for one in fast} == {"fprop", "dgrad", "wgrad", "bgrad"}
    assert {one.fault.kind for one in fast} == {"value", "delivery", "unseen"}
    assert len(fast) <= 20
    assert needed("none", layer) == []
    assert {*needed("all", layer), *needed("all", Case.parse(CHAIN))} == set(MUTANTS)


@pytest.mark.parametrize("mode", ("fast", "all"))
def test_a_comparison_that_accepts_everything_is_vacuous(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(accuracy, "_inexact", lambda *_: "")
    monkeypatch.setattr(accuracy, "_inaccurate", lambda *_: "")
    found = judged(UNFUSED, mode)
    assert found.outcome is Outcome.VACUOUS
    assert set(found.roles.values()) == {Outcome.VACUOUS}
    assert found.mutants is not None
    assert "wgrad_doubled" in found.mutants.survived
    assert found.mutants.killed > 0  # what is missing or not finite is seen all the same
    (wgrad,) = [finding for finding in found.findings if finding.slot == "wgrad"]
    assert re.match(r"expected wgrad_(zeroed|doubled) to be judged INEXACT or INACCURATE", wgrad.why)
    assert "wgrad_doubled (twice as large)" in wgrad.why


def test_a_check_that_is_gone_is_missed_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcheck_cli.judge.slots.protocol", lambda *_: [])
    found = judged(UNFUSED)
    assert found.mutants is not None
    assert (found.outcome, [finding.slot for finding in found.findings]) == (Outcome.VACUOUS, ["wgrad", "bgrad"])
    deserved = {one for name in found.mutants.survived for one in MUTANTS[name].fault.deserves}
    assert deserved == {Outcome.PROTOCOL, Outcome.UNEXPECTED}
    assert found.roles["fprop"] is Outcome.PASSED


def test_a_step_of_the_ladder_that_is_not_seen_costs_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = [name for name in needed("all", Case.parse(UNFUSED)) if MUTANTS[name].fault.roundings]
    monkeypatch.setattr(accuracy, "_inexact", lambda *_: "")
    monkeypatch.setattr(accuracy, "_inaccurate", lambda *_: "")
    only = msgspec.structs.replace(observed(UNFUSED), mutants=ladder)
    found = conclude(Case.parse(UNFUSED), only, CPU)
    assert found.outcome is Outcome.PASSED
    assert found.mutants is not None
    assert (found.mutants.killed, found.mutants.smallest_epsilon) == (0, None)
    assert len(found.mutants.survived) == len(ladder)


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_exact_data_sees_an_error_of_one_rounding(dtype: str) -> None:
    found = judged(f"torch:api=loop:dtype={dtype}:bias=1:m_splits=5,0,0,9,7")
    assert found.mutants is not None
    assert found.mutants.smallest_epsilon == FORMATS[dtype].unit_roundoff


def test_a_case_that_is_red_already_is_not_proved() -> None:
    job = msgspec.structs.replace(pipeline.job(Case.parse(UNFUSED), "all"), target="faulty_layers:doubled_wgrad")
    found = conclude(Case.parse(UNFUSED), engine(job.target).run(job), CPU)
    assert (found.outcome, found.mutants) == (Outcome.INEXACT, None)


def test_rows_that_change_places_in_a_uniform_wgrad_change_nothing() -> None:
    invisible = {"wgrad_rows_rolled", "wgrad_tokens_misaligned", "dgrad_rows_rolled"}
    assert invisible & applied(UNIFORM) == set()
    assert invisible <= applied(UNFUSED)


def test_a_mutant_holds_nothing_but_the_slots_that_it_alters() -> None:
    changed = {
        phase.mutant: {(slot.slot.partition("[")[0], slot.buffer) for slot in phase.slots} for phase in phases(UNFUSED)
    }
    assert changed["wgrad_doubled"] == {("wgrad", "grad")}
    assert changed["wgrad_in_main_grad"] == {("wgrad", "grad"), ("wgrad", "main_grad")}
    assert changed["wgrad_unobserved"] == set()
    assert [phase.mutant for phase in phases(UNFUSED) for s in phase.slots if s.residuals and s.role != "wgrad"] == []


def test_a_mutant_belongs_to_the_last_microbatch_and_to_one_or_two_experts() -> None:
    assert {phase.microbatch for phase in phases(UNFUSED)} == {1}
    experts = {phase.mutant: {slot.expert for slot in phase.slots} for phase in phases(UNFUSED)}
    assert {len(several) for several in experts.values()} <= {0, 1, 2, 4}
    assert [name for name, several in experts.items() if len(several) == 4] == [
        "wgrad_missing_but_first",
        "bgrad_missing_but_first",
    ]


def test_mutants_measured_in_several_calls_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    together = phases(UNFUSED)
    monkeypatch.setattr(mutants, "AT_ONCE", 1)
    job = pipeline.job(Case.parse(UNFUSED), "all")
    apart = [phase for channel in engine(job.target).run(job).channels for phase in channel.phases if phase.mutant]
    assert apart == together


def test_a_mutant_of_a_phase_in_which_nothing_was_found_proves_nothing() -> None:
    replace = msgspec.structs.replace
    seen = observed(UNFUSED, "fast")
    channels = [
        replace(one, phases=[replace(phase, microbatch=9) if phase.mutant else phase for phase in one.phases])
        for one in seen.channels
    ]
    told = conclude(Case.parse(UNFUSED), replace(seen, channels=channels), CPU).mutants
    assert told
    assert (told.killed, told.of) == (0, 0)


def test_a_mutant_of_another_version_is_passed_over() -> None:
    seen = msgspec.structs.replace(observed(UNFUSED), mutants=["wgrad_doubled", "wgrad_of_the_future"])
    found = conclude(Case.parse(UNFUSED), seen, CPU)
    assert found.mutants is not None
    assert (found.outcome, found.mutants.of, found.mutants.killed) == (Outcome.PASSED, 1, 1)


# Small cases in which a fault once left what another order of roundings makes right, or nothing at all.
COINCIDENCES = (
    "torch:api=grouped_mm:bias=1:m_splits=30,30,1,1,30:in_features=8:out_features=8:grad_output=expanded:seed=34",
    "torch:api=loop:fuse_wgrad_accumulation=1:dtype=fp16:m_splits=1:tokens_per_expert=1:in_features=8:out_features=8"
    ":microbatches=1:grad_output=expanded",
    "torch:api=grouped_mm:dtype=fp16:bias=1:m_splits=1:tokens_per_expert=1:in_features=8:out_features=8:microbatches=1",
)


@pytest.mark.parametrize("text", COINCIDENCES)
def test_an_alteration_that_is_right_after_all_is_no_fault(text: str) -> None:
    job = pipeline.job(Case.parse(text), "all")
    assert conclude(Case.parse(text), engine(job.target).run(job), CPU).outcome is Outcome.PASSED


def test_without_mutants_a_job_asks_for_none() -> None:
    assert pipeline.job(Case.parse(UNFUSED)).mutants == []
    assert verdict(UNFUSED).mutants is None


def test_an_unknown_mode_is_a_usage_error() -> None:
    options = pipeline.RunOptions(mutants="some")
    with pytest.raises(UsageError, match="--mutants some: expected fast or all or none"):
        pipeline.run(selection.Asked(provider=["torch"]), options, pipeline.Typed())


@pytest.mark.parametrize("data", (f"{MANY_TOKENS}", "torch:api=loop:dtype=fp16", "torch:api=loop:dtype=fp32"))
def test_operands_rounded_to_bf16_are_seen_whatever_the_bound_of_a_sum_allows(data: str) -> None:
    # Integers of the exact data are bf16 as well, and the bound of a long sum of one sign is wider than a rounding.
    case = Case.parse(data)
    job = pipeline.job(case, "all")
    seen = engine(job.target).run(job)
    names = {f"{role}_operands_in_bf16" for role in ("fprop", "dgrad", "wgrad")}
    applied = {phase.mutant for channel in seen.channels for phase in channel.phases} & names
    found = conclude(case, seen, CPU)
    assert (found.outcome, applied) == (Outcome.PASSED, names)
    assert found.mutants is not None
    assert not names & set(found.mutants.survived)


@pytest.mark.parametrize("tail", ("", ":fuse_wgrad=1", ":dtype=fp16", ":grad_output=expanded"))
def test_one_per_cent_of_a_plain_layer_is_put_into_random_data_and_seen(tail: str) -> None:
    # What is drowned in roundings is left out; of these shapes nothing of that size is, whoever widens the limit.
    case = Case.parse(f"torch:api=loop{tail}")
    job = pipeline.job(case, "all")
    (random,) = (one for one in engine(job.target).run(job).channels if one.fill == "normal")
    put = {phase.mutant for phase in random.phases}
    assert {"fprop_one_percent", "dgrad_one_percent", "wgrad_one_percent", "wgrad_token_dropped"} <= put


def test_every_bug_that_a_fault_cites_can_be_looked_up() -> None:
    listed = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text("utf-8")
    cited = {fault.cites for fault in FAULTS if not fault.cites.startswith("false pass")}
    assert cited != set()
    assert [name for name in sorted(cited) if f"| {name} | [" not in listed] == []
