"""Which faults do the comparisons of other suites let pass, and does gradcheck let any of them pass?"""

from __future__ import annotations

import functools

import pytest
from in_process import CPU, seen_by
from policies import FAULTS, LAYER, POLICIES, Experiment, accepts, layer, seen

from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, Fill, Observation
from gradcheck_cli.records.verdict import Outcome

DROPPED, ROLLED_DGRAD, ROLLED, MISALIGNED, SWAPPED, PERCENT, PERMILLE, COLUMN, TOKENS, ZERO, DOUBLED, GARBAGE, BF16 = (
    FAULTS
)
SEEDS = (0, 1, 2, 3)
PERMUTED = {ROLLED_DGRAD, ROLLED, MISALIGNED}
SCALED = {PERCENT, PERMILLE}
WEAK = {DROPPED, COLUMN, TOKENS, GARBAGE, BF16}

# grad_output and policy -> the faults that it takes for right.
MISSES: dict[tuple[str, str], set[str]] = {
    ("ones", "bf16 default"): PERMUTED | SCALED,
    ("ones", ".05/.05"): PERMUTED | SCALED | {COLUMN, GARBAGE},
    ("ones", ".125/.0675"): PERMUTED | SCALED | {COLUMN, GARBAGE},
    ("ones", "RMSE < 5% of range"): PERMUTED | SCALED | WEAK,
    ("random", "bf16 default"): SCALED,
    ("random", ".05/.05"): SCALED | {GARBAGE},
    ("random", ".125/.0675"): SCALED | {GARBAGE},
    ("random", "RMSE < 5% of range"): SCALED | WEAK | {DOUBLED},
}
# Where the worst error lies so near to the tolerance that the data decides: a seed that misses, one that sees.
BORDERLINE = {
    ("ones", ".05/.05", COLUMN): (1, 0),
    ("ones", ".125/.0675", BF16): (3, 0),
    ("random", ".125/.0675", COLUMN): (22, 0),
}
STEADY = {
    f"{grad_output}-{policy}-{fault}": (grad_output, policy, fault)
    for grad_output, policy in MISSES
    for fault in FAULTS
    if (grad_output, policy, fault) not in BORDERLINE
}

# What gradcheck sees with one kind of data alone: a uniform grad_output hides what changes places whatever the
# comparison, and integers whose sums stay small need no wide accumulator.
HIDDEN: dict[tuple[str, Fill], set[str]] = {
    ("random", "exact"): {BF16},
    ("random", "range"): set(),
    ("random", "normal"): set(),
    ("expanded", "exact"): PERMUTED | {BF16},
    ("expanded", "normal"): PERMUTED,
}


@functools.cache
def experiment(grad_output: str, seed: int) -> Experiment:
    return Experiment.draw(grad_output, seed)


@functools.cache
def observed(fault: str, grad_output: str = "random") -> Observation:
    """What gradcheck's engine sees of the loop candidate with the fault, on the very shape of the experiment."""
    return seen(case_of(grad_output), layer(FAULTS.get(fault, {})))


def case_of(grad_output: str) -> str:
    return LAYER if grad_output == "random" else f"{LAYER}:grad_output={grad_output}"


def outcome(fault: str, grad_output: str = "random", only: Fill | None = None) -> Outcome:
    found = observed(fault, grad_output)
    return conclude(Case.parse(case_of(grad_output)), seen_by(found, only) if only else found, CPU).outcome


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("grad_output", ("ones", "random"))
def test_every_policy_accepts_what_is_right(grad_output: str, policy: str) -> None:
    assert all(accepts(policy, experiment(grad_output, seed), {}) for seed in SEEDS)


@pytest.mark.parametrize(("grad_output", "policy", "fault"), tuple(STEADY.values()), ids=STEADY)
def test_a_policy_misses_what_it_is_known_to_miss_and_nothing_else(grad_output: str, policy: str, fault: str) -> None:
    missed = [accepts(policy, experiment(grad_output, seed), FAULTS[fault]) for seed in SEEDS]
    assert missed == [fault in MISSES[grad_output, policy]] * len(SEEDS)


@pytest.mark.parametrize(("cell", "seeds"), tuple(BORDERLINE.items()), ids=map("-".join, BORDERLINE))
def test_near_its_tolerance_a_policy_sees_a_fault_or_not_as_the_data_will(
    cell: tuple[str, str, str], seeds: tuple[int, int]
) -> None:
    grad_output, policy, fault = cell
    assert [accepts(policy, experiment(grad_output, seed), FAULTS[fault]) for seed in seeds] == [True, False]


def test_a_policy_on_the_range_of_the_values_lets_a_doubled_wgrad_pass() -> None:
    # Doubling widens the range that the error is measured against.
    assert accepts("RMSE < 5% of range", experiment("random", 0), FAULTS[DOUBLED])
    assert outcome(DOUBLED, only="normal") is Outcome.INACCURATE


@pytest.mark.parametrize("grad_output", ("random", "expanded"))
def test_gradcheck_passes_the_candidate_without_a_fault(grad_output: str) -> None:
    assert outcome("", grad_output) is Outcome.PASSED


@pytest.mark.parametrize("fault", FAULTS)
def test_gradcheck_misses_none_of_the_faults_with_a_random_grad_output(fault: str) -> None:
    assert outcome(fault) is Outcome.INEXACT


@pytest.mark.parametrize(("grad_output", "fill"), tuple(HIDDEN), ids="-".join)
def test_each_kind_of_data_hides_what_it_is_known_to_hide_and_nothing_else(grad_output: str, fill: Fill) -> None:
    missed = {fault for fault in FAULTS if outcome(fault, grad_output, only=fill).green}
    assert missed == HIDDEN[grad_output, fill]


def test_every_fill_of_the_random_grad_output_is_among_the_kinds_of_data() -> None:
    assert {fill for grad_output, fill in HIDDEN if grad_output == "random"} == set(FILLS)


@pytest.mark.parametrize("fault", sorted(PERMUTED))
def test_what_a_uniform_grad_output_hides_is_said_beside_the_pass(fault: str) -> None:
    case = case_of("expanded")
    found = conclude(Case.parse(case), observed(fault, "expanded"), CPU)
    assert (found.outcome, len(found.notes)) == (Outcome.PASSED, 1)
