"""Is a pass earned? Observations written by hand, judged without a device."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hand_written import SlotAlter, altered, channel, deviation, observation

from gradcheck_cli.judge.bounds import LAMBDA
from gradcheck_cli.judge.conclude import conclude, excluded, untested
from gradcheck_cli.judge.contract import expected
from gradcheck_cli.judge.invisible import SAME_EVERYWHERE
from gradcheck_cli.judge.last_words import last_words
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import FILLS, INFINITE, Fill, Observation, Raised, Role, SlotSeen
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict, gravest

UNFUSED = Case.parse("torch:api=loop:bias=1:m_splits=5,0,0,9,7")
FUSED = Case.parse("torch:api=loop:bias=1:m_splits=5,0,0,9,7:fuse_wgrad_accumulation=1")
NATIVE = Case.parse("te:api=module:path=native")
NOWHERE = Environment()
OLD_TE = Environment(versions={"transformer_engine": "2.16.1", "cublaslt": "13.5.0"}, compute_capability=(9, 0))

# Mildest first. NOT_THE_CASE is judged first and alone.
GRAVITY = [
    "PASSED",
    "EXCLUDED",
    "REFUSED",
    "VACUOUS",
    "UNTESTED",
    "NONDETERMINISTIC",
    "PROTOCOL",
    "INACCURATE",
    "INEXACT",
    "UNEXPECTED",
    "NONFINITE",
    "MISPLACED",
    "MISSING",
    "RAISED",
    "TIMED_OUT",
    "CRASHED",
    "NOT_THE_CASE",
]
FIGURES: dict[str, tuple[Fill, dict[str, Any], Outcome]] = {
    "one element differs on exact data": ("exact", {"differing": 1}, Outcome.INEXACT),
    "an error just past its bound": ("normal", {"smallest_lambda": 1.0000001 * LAMBDA}, Outcome.INACCURATE),
    "an error that no lambda allows": ("normal", {"smallest_lambda": INFINITE}, Outcome.INACCURATE),
    "a lambda that is NaN": ("normal", {"smallest_lambda": float("nan")}, Outcome.INACCURATE),
    "no lambda": ("normal", {"smallest_lambda": None}, Outcome.INACCURATE),
    "one element differs past the exact integers": ("range", {"differing": 1}, Outcome.INEXACT),
    "nothing compared": ("normal", {"compared": 0}, Outcome.UNTESTED),
    "nothing compared on exact data": ("exact", {"compared": 0}, Outcome.UNTESTED),
}
ENDINGS = {
    "crashed": Outcome.CRASHED,
    "timed_out": Outcome.TIMED_OUT,
    "lost": Outcome.CRASHED,
    "an ending that nobody knows": Outcome.CRASHED,
    # Without a word of what.
    "raised": Outcome.CRASHED,
}


def verdict(case: Case, seen: Observation, where: Environment = NOWHERE) -> Verdict:
    return conclude(case, seen, where)


def only_where(role: Role, expert: int, buffer: str, change: dict[str, Any] | None) -> SlotAlter:
    """Change one slot, or leave it out."""

    def alter(slot: SlotSeen) -> SlotSeen | None:
        if (slot.role, slot.expert, slot.buffer) != (role, expert, buffer):
            return slot
        return altered(slot, **change) if change is not None else None

    return alter


def with_figures(fill: Fill, figures: dict[str, Any]) -> Observation:
    """dgrad[3] has these figures in one channel; the other channel is right."""
    wrong = only_where("dgrad", 3, "input.grad", {"contents": {"value": deviation(fill, **figures)}})
    channels = [channel(UNFUSED, one, wrong if one == fill else lambda slot: slot) for one in FILLS]
    return Observation(case=str(UNFUSED), ending="finished", channels=channels)


@pytest.mark.parametrize("case", (UNFUSED, FUSED), ids=["unfused", "fused"])
def test_an_observation_that_says_what_the_contract_says_passes(case: Case) -> None:
    found = verdict(case, observation(case))
    assert (found.outcome, found.findings, set(found.roles)) == (
        Outcome.PASSED,
        [],
        {"fprop", "dgrad", "wgrad", "bgrad"},
    )


def test_an_empty_observation_passes_nothing() -> None:
    found = verdict(UNFUSED, Observation(case=str(UNFUSED), ending="finished"))
    assert set(found.roles.values()) | {found.outcome} == {Outcome.UNTESTED}


@pytest.mark.parametrize("fill", FILLS)
def test_a_channel_that_is_not_there_leaves_every_role_untested(fill: Fill) -> None:
    found = verdict(UNFUSED, observation(UNFUSED, fills=(fill,)))
    assert set(found.roles.values()) | {found.outcome} == {Outcome.UNTESTED}


def test_two_channels_of_the_same_fill_are_one() -> None:
    assert verdict(UNFUSED, observation(UNFUSED, fills=("exact", "exact"))).outcome is Outcome.UNTESTED


@pytest.mark.parametrize("fill", FILLS)
def test_a_channel_without_its_phases_passes_nothing(fill: Fill) -> None:
    nothing: dict[str, Any] = {"phases": []}
    channels = [channel(UNFUSED, one, **(nothing if one == fill else {})) for one in FILLS]
    assert verdict(UNFUSED, Observation(case="", ending="finished", channels=channels)).outcome is Outcome.UNTESTED


def test_a_channel_that_cannot_be_run_leaves_the_judgement_to_the_other() -> None:
    none: dict[str, Any] = {"phases": [], "inapplicable": "too long a sum"}
    channels = [channel(UNFUSED, fill, **({} if fill == "normal" else none)) for fill in FILLS]
    found = verdict(UNFUSED, Observation(case="", ending="finished", channels=channels))
    assert found.outcome is Outcome.PASSED
    assert found.channels == {"exact": "too long a sum", "range": "too long a sum", "normal": "judged"}


def test_where_no_channel_can_be_run_nothing_is_tested() -> None:
    channels = [channel(UNFUSED, fill, inapplicable="too long a sum") for fill in FILLS]
    found = verdict(UNFUSED, Observation(case="", ending="finished", channels=channels))
    assert [(f.outcome, f.experts) for f in found.findings] == [(Outcome.UNTESTED, [0, 1, 2, 3, 4])] * 4


def test_where_no_channel_can_be_run_every_finding_says_why() -> None:
    channels = [channel(UNFUSED, fill, inapplicable=f"too long a sum of {fill} data") for fill in FILLS]
    found = verdict(UNFUSED, Observation(case="", ending="finished", channels=channels))
    why = "expected a comparison; the data does not allow one: too long a sum of exact data"
    assert [f.why.startswith(why) for f in found.findings] == [True] * 4


@pytest.mark.parametrize("case", (UNFUSED, FUSED), ids=["unfused", "fused"])
@pytest.mark.parametrize("buffer", ("output", "input.grad", "grad", "main_grad"))
def test_a_slot_that_nobody_looked_at_is_untested(case: Case, buffer: str) -> None:
    role: Role = {"output": "fprop", "input.grad": "dgrad"}.get(buffer, "wgrad")  # type: ignore[assignment]
    found = verdict(case, observation(case, only_where(role, 4, buffer, None)))
    assert (found.outcome, found.findings[0].experts) == (Outcome.UNTESTED, [4])


@pytest.mark.parametrize("slot", expected(UNFUSED), ids=lambda slot: f"{slot.slot}-{slot.microbatch}")
def test_no_slot_of_the_contract_can_be_left_out(slot: Any) -> None:
    def without(channel: Any) -> Any:
        kept = [
            msgspec.structs.replace(
                phase,
                slots=[
                    one
                    for one in phase.slots
                    if (one.slot, one.buffer, phase.microbatch) != (slot.slot, slot.buffer, slot.microbatch)
                ],
            )
            for phase in channel.phases
        ]
        return msgspec.structs.replace(channel, phases=kept)

    seen = observation(UNFUSED)
    seen = msgspec.structs.replace(seen, channels=[without(one) for one in seen.channels])
    assert verdict(UNFUSED, seen).outcome is Outcome.UNTESTED


@pytest.mark.parametrize(("fill", "figures", "outcome"), tuple(FIGURES.values()), ids=FIGURES)
def test_one_wrong_figure_in_one_channel_fails_its_role_alone(
    fill: Fill, figures: dict[str, Any], outcome: Outcome
) -> None:
    found = verdict(UNFUSED, with_figures(fill, figures))
    assert found.roles == {"fprop": Outcome.PASSED, "dgrad": outcome, "wgrad": Outcome.PASSED, "bgrad": Outcome.PASSED}


def test_an_error_of_exactly_its_bound_passes() -> None:
    assert verdict(UNFUSED, with_figures("normal", {"smallest_lambda": LAMBDA})).outcome is Outcome.PASSED


def test_the_slot_that_needs_the_largest_lambda_speaks_for_its_finding_whatever_its_ratio() -> None:
    figures = {0: {"ratio": 9.0, "smallest_lambda": 5.0}, 3: {"ratio": 2.0, "smallest_lambda": 6.0}}

    def alter(slot: SlotSeen) -> SlotSeen:
        if slot.role != "dgrad" or slot.expert not in figures:
            return slot
        return altered(slot, contents={"value": deviation("normal", **figures[slot.expert])})

    found = verdict(UNFUSED, observation(UNFUSED, alter)).findings
    assert [(f.slot, f.experts, f.ratio) for f in found] == [("dgrad[3]", [0, 3], 2.0)]


def test_the_comparison_that_counts_is_with_the_content_that_is_due() -> None:
    moved = only_where("dgrad", 3, "input.grad", {"contents": {"another": deviation("exact")}})
    assert verdict(UNFUSED, observation(UNFUSED, moved)).roles["dgrad"] is Outcome.UNTESTED


def test_a_main_grad_that_a_right_gradient_is_too_small_to_move_is_not_missing() -> None:
    both = dict.fromkeys(("prefill", "prefill+sum"), deviation("normal"))
    unmoved = only_where("wgrad", 3, "main_grad", {"nonzero_expected": 0, "contents": both})
    assert verdict(FUSED, observation(FUSED, unmoved)).roles["wgrad"] is Outcome.VACUOUS


@pytest.mark.parametrize("expert", (2, 3), ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("role_and_buffer", (("fprop", "output"), ("dgrad", "input.grad"), ("bgrad", "grad")), ids=str)
def test_what_is_not_there_is_missing(role_and_buffer: tuple[Role, str], expert: int) -> None:
    role, buffer = role_and_buffer
    gone = only_where(role, expert, buffer, {"present": False, "contents": {}, "residuals": {}})
    assert verdict(UNFUSED, observation(UNFUSED, gone)).roles[role] is Outcome.MISSING


def test_a_nan_is_not_finite_even_where_every_figure_agrees() -> None:
    assert verdict(UNFUSED, observation(UNFUSED, only_where("fprop", 3, "output", {"nonfinite": 1}))).outcome is (
        Outcome.NONFINITE
    )


@pytest.mark.parametrize("flag", (False, None))
def test_a_fused_wgrad_must_be_announced(flag: bool | None) -> None:  # noqa: FBT001
    seen = observation(FUSED, only_where("wgrad", 3, "main_grad", {"added_flag": flag}))
    (only,) = verdict(FUSED, seen).findings
    assert (only.outcome, only.diagnosis, only.experts) == (Outcome.PROTOCOL, "flag not set", [3])


def test_an_unfused_wgrad_must_not_be_announced() -> None:
    seen = observation(UNFUSED, only_where("wgrad", 3, "main_grad", {"added_flag": True}))
    assert [(f.outcome, f.diagnosis) for f in verdict(UNFUSED, seen).findings] == [(Outcome.PROTOCOL, "flag set")]


@pytest.mark.parametrize("change", ({"shape": (3,)}, {"dtype": "float64"}), ids=["shape", "dtype"])
def test_a_dummy_in_grad_has_the_shape_and_dtype_of_its_parameter(change: dict[str, Any]) -> None:
    dummy = {"present": True, "shape": (96, 64), "dtype": "bfloat16"}
    right = observation(FUSED, only_where("wgrad", 3, "grad", dummy))
    wrong = observation(FUSED, only_where("wgrad", 3, "grad", {**dummy, **change}))
    assert [verdict(FUSED, seen).outcome for seen in (right, wrong)] == [Outcome.PASSED, Outcome.PROTOCOL]


@pytest.mark.parametrize("change", ({"shape": (3,)}, {"dtype": "float64"}), ids=["shape", "dtype"])
def test_a_gradient_has_the_shape_and_dtype_of_its_contract(change: dict[str, Any]) -> None:
    assert verdict(UNFUSED, observation(UNFUSED, only_where("bgrad", 3, "grad", change))).outcome is Outcome.PROTOCOL


@pytest.mark.parametrize(("ending", "outcome"), tuple(ENDINGS.items()), ids=ENDINGS)
def test_a_case_that_did_not_end_well_is_never_passed_whatever_was_seen(ending: Any, outcome: Outcome) -> None:
    seen = msgspec.structs.replace(observation(UNFUSED), ending=ending, exit_status="signal 11 (SIGSEGV)")
    found = verdict(UNFUSED, seen)
    assert {found.outcome, *found.roles.values()} == {outcome}


def test_a_crash_is_told_with_its_status_and_the_last_words() -> None:
    seen = Observation(
        case="", ending="crashed", exit_status="signal 11 (SIGSEGV)", last_output="loading\nreading address 0\n"
    )
    (only,) = verdict(UNFUSED, seen).findings
    assert only.why == (
        "expected a result; the worker ended with signal 11 (SIGSEGV); its last output: reading address 0"
    )


STACKS = """\
Thread 0x00007f07dcf726c0 (most recent call first):
  File "threading.py", line 982 in run

Current thread 0x00007f07dddc4b80 (most recent call first):
  File "ctypes/__init__.py", line 519 in string_at
  File "<string>", line 1 in <module>
"""
ONE_STACK = 'Thread 0x00007f07dcf726c0 [worker] (most recent call first):\n  File "layer.py", line 7 in wait\n'
C10 = """\
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
Exception raised from query at c10/cuda/CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x98
Fatal Python error: Aborted

"""
EXTENSIONS = "\nExtension modules: numpy._core._multiarray_umath, torch._C (total: 2)\n"
FRAME = 'File "ctypes/__init__.py", line 519 in string_at'
# The last output of a worker -> what is quoted of it.
LAST_WORDS = {
    "a plain line": ("loading\nreading address 0\n", "reading address 0"),
    "nothing": ("\n", ""),
    "a segmentation fault": (
        f"loading\nFatal Python error: Segmentation fault\n\n{STACKS}{EXTENSIONS}",
        f"Fatal Python error: Segmentation fault; {FRAME}; before that: loading",
    ),
    "a hang": (f"waiting\n{STACKS}", f"{FRAME}; before that: waiting"),
    "a hang outside the thread that was asked": (ONE_STACK, 'File "layer.py", line 7 in wait'),
    "an exception of C++": (
        f"{C10}{STACKS}{EXTENSIONS}",
        f"Fatal Python error: Aborted; {FRAME}; before that: CUDA error: an illegal memory access was encountered",
    ),
    "a stack without its head": (f'reading.py", line 9 in run\n  File "x.py", line 1 in main\n{EXTENSIONS}', ""),
    "no Python frame": (f"gone\n{STACKS.splitlines()[0]}\n  <no Python frame>\n", "gone"),
}


@pytest.mark.parametrize(("output", "quoted"), LAST_WORDS.values(), ids=LAST_WORDS)
def test_of_a_last_output_is_quoted_what_tells(output: str, quoted: str) -> None:
    assert last_words(output) == quoted


def test_a_case_over_its_time_is_told_with_the_limit_and_the_seconds_not_with_the_signal() -> None:
    seen = Observation(case="", ending="timed_out", exit_status="signal 15 (SIGTERM)", seconds=1.52, last_output=STACKS)
    (only,) = verdict(UNFUSED, seen).findings
    assert only.diagnosis == "time limit"
    assert only.why == f"expected a result within the time limit; there was none after 1.5 s; its last output: {FRAME}"


def test_an_exception_nobody_announced_is_raised() -> None:
    words = Raised(type="RuntimeError", message="no\nstack", during="backward of microbatch 1", traceback="")
    (only,) = verdict(UNFUSED, Observation(case="", ending="raised", raised=words)).findings
    assert (only.outcome, only.diagnosis) == (Outcome.RAISED, "RuntimeError")
    assert only.why == "expected gradients; the candidate raised RuntimeError in backward of microbatch 1: no"


@pytest.mark.parametrize("name", ("single_grouped_weight", "fuse_wgrad_accumulation", "dtype", "num_gemms", "bias"))
def test_another_configuration_than_asked_is_not_the_case_first_and_alone(name: str) -> None:
    gone = only_where("dgrad", 3, "input.grad", {"present": False})
    seen = msgspec.structs.replace(observation(UNFUSED, gone), effective={name: "something else"})
    found = verdict(UNFUSED, seen)
    assert {found.outcome, *found.roles.values()} == {Outcome.NOT_THE_CASE}
    assert [f.diagnosis for f in found.findings] == [name]


def test_not_the_case_goes_before_an_exception() -> None:
    words = Raised(type="ValueError", message="no", during="forward", traceback="")
    seen = Observation(case="", ending="raised", raised=words, effective={"dtype": "fp32"})
    assert verdict(UNFUSED, seen).outcome is Outcome.NOT_THE_CASE


def test_not_the_case_quotes_the_warning_that_came_with_it() -> None:
    seen = Observation(case="", ending="finished", effective={"bias": 0}, warnings=["UserWarning: bias is off"])
    assert "asked bias=1, and bias=0 ran. It warned: UserWarning: bias is off" in verdict(UNFUSED, seen).findings[0].why


def test_an_announced_fallback_is_refused_with_its_unlock() -> None:
    seen = msgspec.structs.replace(observation(NATIVE), effective={"path": "legacy"})
    (only,) = verdict(NATIVE, seen, OLD_TE).findings
    assert (only.outcome, only.unlock) == (Outcome.REFUSED, "Transformer Engine 2.17 or newer")


def test_an_announced_fallback_that_is_right_leaves_every_role_refused() -> None:
    found = verdict(NATIVE, msgspec.structs.replace(observation(NATIVE), effective={"path": "legacy"}), OLD_TE)
    assert {found.outcome, *found.roles.values()} == {Outcome.REFUSED}


# What the layer that ran instead gets wrong -> what that deserves.
FALLEN: dict[str, tuple[SlotAlter, Outcome]] = {
    "no wgrad": (only_where("wgrad", 3, "grad", {"present": False, "contents": {}}), Outcome.MISSING),
    "a wrong wgrad": (
        only_where("wgrad", 3, "grad", {"contents": {"sum": deviation("normal", differing=1)}}),
        Outcome.INEXACT,
    ),
    "a NaN": (only_where("wgrad", 3, "grad", {"nonfinite": 1}), Outcome.NONFINITE),
    "nobody looked": (only_where("wgrad", 3, "grad", None), Outcome.UNTESTED),
}


@pytest.mark.parametrize(("wrong", "outcome"), tuple(FALLEN.values()), ids=FALLEN)
def test_an_announced_fallback_is_no_cover_for_a_wrong_gradient(wrong: SlotAlter, outcome: Outcome) -> None:
    seen = msgspec.structs.replace(observation(NATIVE, wrong), effective={"path": "legacy"})
    found = verdict(NATIVE, seen, OLD_TE)
    assert [f.outcome for f in found.findings] == [outcome, Outcome.REFUSED]
    assert (found.outcome, found.roles["wgrad"], found.roles["dgrad"]) == (outcome, outcome, Outcome.REFUSED)


def test_a_fallback_in_only_some_of_the_forwards_is_not_the_one_announced() -> None:
    seen = msgspec.structs.replace(observation(NATIVE), effective={"path": "native, then legacy"})
    assert verdict(NATIVE, seen, OLD_TE).outcome is Outcome.NOT_THE_CASE


@pytest.mark.parametrize("path", ("native", "legacy"))
def test_a_path_that_nobody_names_is_not_the_one_that_was_asked(path: str) -> None:
    case = Case.parse(f"te:api=module:path={path}")
    (only,) = verdict(case, observation(case)).findings
    assert (only.outcome, only.diagnosis) == (Outcome.NOT_THE_CASE, "path")
    assert f"asked path={path}, and the candidate does not say which path ran" in only.why


def test_a_candidate_that_raises_need_not_say_which_path_it_took() -> None:
    words = Raised(type="ValueError", message="no", during="forward of microbatch 0", traceback="")
    seen = Observation(case="", ending="raised", raised=words)
    assert verdict(NATIVE, seen).outcome is Outcome.RAISED
    # An output without a grad_fn, of which the path would be read, is what the exception is about.
    assert verdict(NATIVE, msgspec.structs.replace(seen, effective={"path": "unknown"})).outcome is Outcome.RAISED
    assert verdict(NATIVE, msgspec.structs.replace(seen, effective={"path": "legacy"})).outcome is Outcome.NOT_THE_CASE


def test_a_fallback_that_nobody_announced_is_not_the_case() -> None:
    newer = msgspec.structs.replace(OLD_TE, versions={"transformer_engine": "2.18.0", "cublaslt": "13.5.0"})
    seen = msgspec.structs.replace(observation(NATIVE), effective={"path": "legacy"})
    assert verdict(NATIVE, seen, newer).outcome is Outcome.NOT_THE_CASE


def test_an_announced_fallback_excuses_no_other_difference() -> None:
    seen = msgspec.structs.replace(observation(NATIVE), effective={"path": "legacy", "dtype": "fp32"})
    assert verdict(NATIVE, seen, OLD_TE).outcome is Outcome.NOT_THE_CASE


def test_a_path_that_was_left_open_may_be_any() -> None:
    case = Case.parse("te:api=module")
    seen = msgspec.structs.replace(observation(case), effective={"path": "native"})
    assert verdict(case, seen, OLD_TE).outcome is Outcome.PASSED


def test_outcomes_are_ordered_as_the_design_orders_them() -> None:
    assert [outcome.value for outcome in sorted(Outcome, key=lambda outcome: outcome.gravity)] == GRAVITY


def test_a_gate_lets_pass_only_what_was_earned_excluded_or_refused() -> None:
    assert [outcome.value for outcome in Outcome if outcome.green] == ["PASSED", "EXCLUDED", "REFUSED"]


def test_the_gravest_of_nothing_is_untested() -> None:
    assert gravest([]) is Outcome.UNTESTED


def test_the_gravest_finding_is_the_outcome_and_stands_first() -> None:
    def alter(slot: SlotSeen) -> SlotSeen:
        if slot.role == "fprop" and slot.expert == 3:
            return altered(slot, nonfinite=2)
        return altered(slot, dtype="float64") if slot.role == "bgrad" else slot

    found = verdict(UNFUSED, observation(UNFUSED, alter))
    assert [f.outcome for f in found.findings] == [Outcome.NONFINITE, Outcome.PROTOCOL]
    assert found.outcome is Outcome.NONFINITE


def test_a_wgrad_that_is_not_there_is_not_also_said_to_lack_its_flag() -> None:
    def alter(slot: SlotSeen) -> SlotSeen:
        if slot.buffer != "main_grad":
            return slot
        held = {"prefill": deviation("exact"), "prefill+sum": deviation("exact", differing=9)}
        return altered(slot, contents=held if slot.nonzero_expected else slot.contents, added_flag=False)

    assert {f.outcome for f in verdict(FUSED, observation(FUSED, alter)).findings} == {Outcome.MISSING}


def test_one_misplaced_wgrad_does_not_excuse_another_that_is_missing() -> None:
    def alter(slot: SlotSeen) -> SlotSeen:
        if slot.role != "wgrad" or slot.expert not in (3, 4):
            return slot
        if slot.buffer == "grad":
            return altered(slot, present=False, contents={}, residuals={})
        held = {"prefill": deviation("exact", differing=9), "prefill+sum": deviation("exact")}
        return altered(slot, contents=held, residuals={"prefill+sum": 0.0}) if slot.expert == 3 else slot

    found = verdict(UNFUSED, observation(UNFUSED, alter)).findings
    assert [(f.outcome, f.experts) for f in found] == [(Outcome.MISSING, [4]), (Outcome.MISPLACED, [3])]


def test_a_margin_is_the_worst_ratio_of_its_role() -> None:
    margin = verdict(UNFUSED, with_figures("normal", {"ratio": 0.75, "after_rounding": 0.25})).margins["dgrad"]
    assert (margin.slot, margin.ratio, margin.after_rounding) == ("dgrad[3]", 0.75, 0.25)


def test_a_finding_says_where_and_on_which_data() -> None:
    (only,) = verdict(UNFUSED, with_figures("normal", {"ratio": 3.0})).findings
    assert only.why == (
        "an error is 3 times its bound; expected 1, found 1 at [0, 0] (after the backward of microbatch 0, random data)"
    )


def test_an_excluded_case_carries_the_constraint_and_its_reason() -> None:
    found = excluded(UNFUSED, "pattern-needs-experts", "too few")
    assert found.findings == [
        Finding(slot="case", outcome=Outcome.EXCLUDED, why="too few", diagnosis="pattern-needs-experts")
    ]


@pytest.mark.parametrize("bias", ("", ":bias=1"))
def test_what_a_uniform_grad_output_cannot_show_is_noted(bias: str) -> None:
    uniform = Case.parse(f"torch:api=loop:grad_output=expanded{bias}")
    assert verdict(uniform, observation(uniform)).notes == [SAME_EVERYWHERE]


def test_a_random_grad_output_hides_nothing_worth_a_note() -> None:
    assert verdict(UNFUSED, observation(UNFUSED)).notes == []


def test_a_case_that_never_came_to_run_is_untested() -> None:
    assert untested(UNFUSED).outcome is Outcome.UNTESTED
