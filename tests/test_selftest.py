"""Does the self-test see every fault, tell what it saw, and fail where one is not seen?"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from commands import typed
from in_process import CPU, engine

from gradcheck_cli import pipeline, selftest
from gradcheck_cli.judge import proof, slots
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.sensitivity import Tally
from gradcheck_cli.records.battery import FAULTS, LADDER, Mutant
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.records.observation import ChannelSeen, Observation, PhaseSeen
from gradcheck_cli.records.sensitivity import Ended, Seen, Sensitivity, Smallest
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.console import open_console
from gradcheck_cli.reporters.sensitivity import show

CASE = "torch:api=loop:fuse_wgrad_accumulation=1:m_splits=5,0,9:in_features=16:out_features=24"
BESIDE_MORE = "torch:api=loop:dtype=fp16:bias=1:m_splits=hot:num_gemms=8"  # the last microbatch adds 1 token to 249


@pytest.fixture(scope="module")
def seen() -> Observation:
    job = pipeline.job(Case.parse(CASE), "all")
    return engine(job.target).run(job)


def told(seen: Observation, text: str = CASE) -> Sensitivity:
    found = Tally()
    found.add(Case.parse(text), seen, conclude(Case.parse(text), seen, CPU))
    return found.told([], 1.0)


def test_every_required_fault_is_seen_on_a_right_layer(seen: Observation) -> None:
    found = told(seen)
    assert (found.cases, found.passed, found.survived) == (1, 1, [])
    assert found.killed == found.of > 80


def test_every_fault_of_the_battery_has_its_line(seen: Observation) -> None:
    assert [one.fault for one in told(seen).seen] == [fault.name for fault in FAULTS]


def test_the_exact_channel_sees_one_roundoff_and_the_bounded_one_three_at_most(seen: Observation) -> None:
    smallest = {one.fill: one.worst for one in told(seen).smallest}
    assert (smallest["exact"], smallest["range"]) == (LADDER[0], LADDER[0])
    assert smallest["normal"] <= 3


def test_the_ladder_is_relative_to_the_gradient_that_a_trainer_reads_not_to_what_the_last_microbatch_adds() -> None:
    job = pipeline.job(Case.parse(BESIDE_MORE), "all")
    found = told(engine(job.target).run(job), BESIDE_MORE)
    assert {one.fill: one.worst for one in found.smallest}["normal"] <= 3


def test_a_fault_that_the_judge_does_not_see_is_told(seen: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    right = next(judgement for _, _, judgement in slots.judge_slots(Case.parse(CASE), seen))
    blind = {"wgrad_doubled", "fprop_nan"}
    real = proof.as_if_found

    def found_right(channel: ChannelSeen, mutated: PhaseSeen, mutant: Mutant) -> ChannelSeen | None:
        # The judge looks at what was found, and not at what the fault made of it.
        return channel if mutant.name in blind else real(channel, mutated, mutant)

    monkeypatch.setattr(proof, "as_if_found", found_right)
    found = told(seen)
    assert found.survived == [f"{name} in {CASE}" for name in ("wgrad_doubled", "fprop_nan")]
    assert (right.outcome, found.passed) == (Outcome.PASSED, 0)


def test_a_layer_that_raises_proves_nothing_and_is_told_apart() -> None:
    # torch's grouped_mm takes no grad_output with strides of 0.
    case = Case.parse("torch:api=grouped_mm:grad_output=expanded")
    job = pipeline.job(case, "all")
    raised = engine(job.target).run(job)
    found = Tally()
    found.add(case, raised, conclude(case, raised, CPU))
    told = found.told([], 1.0)
    assert (told.cases, told.passed, told.ended_early, told.of) == (0, 0, 1, 0)


def test_the_table_says_what_was_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Seen(fault="doubled", cites="J3", summary="twice as large", killed={"exact": 0}, of={"exact": 2})
    blind = Smallest(dtype="bf16", fill="normal", best=1, worst=3, gradients=4, blind=1)
    wider = Smallest(dtype="bf16", fill="normal", chain=True, best=2, worst=32, gradients=4)
    unseen = ["wgrad_doubled in X"]
    found = Sensitivity(
        asked=3, cases=2, passed=1, killed=3, of=5, survived=unseen, seen=[lost], smallest=[blind, wider]
    )
    show(found, open_console())
    printed = capsys.readouterr().out
    for words in (
        "0/2",
        "NOT SEEN: wgrad_doubled in X",
        "1 of 2 cases did not pass",
        "3 of 5 faults seen in 2 of 3 cases",
        "1 more cases ended before",
        "1 faults that were not seen are steps of epsilon_*",
    ):
        assert words in printed
    ladder = [line.split() for line in printed.splitlines() if line.strip().startswith("bf16")]
    assert [(line[0], "".join(line[-3:])) for line in ladder] == [("bf16", "of4none"), ("bf16,", "2to32")]


# A few cases with a place for every fault.
EVERY = """
[[block]]
provider = "torch"
api = "loop"
dtype = ["fp16", "fp32"]
bias = 1
m_splits = "5,0,9"
fuse_wgrad_accumulation = [0, 1]

[[block]]
provider = "torch"
api = "loop"
fuse_wgrad_accumulation = 1
overwrite_main_grad = "all"
zero_out_wgrad = 1
delay_wgrad_compute = 1
padded_tail = "large"
bias = 1

[[block]]
provider = "torch"
api = "loop"
fuse_wgrad_accumulation = 1
grad_added_to_main_grad = "absent"

[[block]]
provider = "torch"
api = "loop"
frozen_weights = "all"
frozen_input = [0, 1]
frozen_bias = [0, 1]
bias = 1

[[block]]
provider = "torch"
api = "loop"
tied_weights = 1

[[block]]
provider = "torch"
api = "loop"
optimizer = "sgd"
frozen_weights = ["none", "first"]
"""


def test_the_command_prints_the_table_and_succeeds(tmp_path: Path) -> None:
    (tmp_path / "every.toml").write_text(EVERY, "utf-8")
    done = typed("selftest", "--matrix", str(tmp_path / "every.toml"), "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"([0-9]+) of \1 faults seen in 12 of 12 cases · 12 of 12 endings told", done.out)
    told = [line.split()[:4] for line in done.out.splitlines() if line.strip().startswith(tuple(ENDINGS))]
    assert told == [[name, one.deserves, one.deserves, "PASSED"] for name, one in ENDINGS.items() if not one.needs_cuda]
    assert "not here: poisoned_context" in done.out
    assert [fault.name for fault in FAULTS if fault.name not in done.out] == []


@pytest.mark.parametrize(
    ("outcome", "after"),
    ((Outcome.PASSED, Outcome.PASSED), (Outcome.CRASHED, Outcome.RAISED)),
    ids=("unseen", "spread"),
)
def test_an_ending_that_is_not_told_or_spreads_fails_the_self_test(
    seen: Observation, outcome: Outcome, after: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(seen).sees
    right = Ended(ending="raises", summary="", deserves=Outcome.RAISED, outcome=Outcome.RAISED, after=Outcome.PASSED)
    wrong = Ended(ending="abort", summary="", deserves=Outcome.CRASHED, outcome=outcome, after=after)
    found = Tally()
    found.add(Case.parse(CASE), seen, conclude(Case.parse(CASE), seen, CPU))
    assert found.told([right], 1.0).sees
    assert not found.told([right, wrong], 1.0).sees
    show(found.told([right, wrong], 1.0), open_console())
    assert "1 of 2 endings told" in capsys.readouterr().out


def test_a_self_test_of_nothing_proves_nothing() -> None:
    # No expert has a token: nearly no fault has a place.
    case = Case.parse("torch:api=loop:m_splits=0,0")
    job = pipeline.job(case, "all")
    empty = engine(job.target).run(job)
    found = Tally()
    found.add(case, empty, conclude(case, empty, CPU))
    of_nothing = found.told([], 1.0)
    assert (of_nothing.sees, of_nothing.enough) == (True, False)
    assert "wgrad_doubled" not in of_nothing.never_put_in
    assert "doubled" in of_nothing.never_put_in


def test_a_self_test_in_which_most_cases_fail_by_themselves_is_too_little() -> None:
    found = Sensitivity(asked=7, cases=3, passed=3, killed=1, of=1, survived=[], seen=[], smallest=[])
    assert (found.sees, found.enough, msgspec.structs.replace(found, cases=4, passed=4).enough) == (True, False, True)


def test_a_self_test_that_tries_too_little_ends_with_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "ENDINGS", {})
    file = tmp_path / "empty.toml"
    file.write_text('[[block]]\nm_splits = "all_empty"\nprovider = "torch"\napi = "loop"\n', "utf-8")
    assert selftest.selftest(str(file), "torch", "cpu") == 5
