"""Is what arrived right? Non-finite, inexact on exact data, out of bound on random data, or unable to tell."""

from __future__ import annotations

from gradcheck_cli.judge.contract import Expected
from gradcheck_cli.judge.diagnosis import diagnose
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Deviation, Fill, SlotSeen
from gradcheck_cli.records.verdict import Outcome


def accuracy(case: Case, wanted: Expected, slot: SlotSeen, fill: Fill) -> Judgement:
    """The outcome of comparing one slot with what it must hold."""
    deviation = slot.contents.get(wanted.content)
    if deviation is None or (not deviation.compared and not wanted.empty):
        return Judgement(outcome=Outcome.UNTESTED, why="expected a comparison; none could be made")
    if slot.nonfinite:
        why = f"expected finite values; found {slot.nonfinite} of {deviation.compared} NaN or infinite"
        return Judgement(outcome=Outcome.NONFINITE, why=why, diagnosis="not finite")
    wrong = _inexact(deviation) if fill == "exact" else _inaccurate(deviation)
    if wrong:
        outcome = Outcome.INEXACT if fill == "exact" else Outcome.INACCURATE
        named = diagnose(slot, wanted.content, case.dtype, fill)
        return Judgement(
            outcome=outcome,
            why=wrong,
            diagnosis=named,
            ratio=deviation.ratio,
            after_rounding=deviation.after_rounding,
        )
    if not wanted.empty and not slot.nonzero_expected:
        why = f"all {deviation.compared} expected values are 0 on {fill} data: a zeroed gradient would have passed"
        return Judgement(outcome=Outcome.VACUOUS, why=why)
    return Judgement(outcome=Outcome.PASSED, why="", ratio=deviation.ratio, after_rounding=deviation.after_rounding)


def _inexact(deviation: Deviation) -> str:
    """What differs on exact data, "" where nothing does."""
    if deviation.differing == 0:
        return ""
    return (
        f"exact data: {deviation.differing} of {deviation.compared} elements differ; "
        f"expected {deviation.expected:.0f}, found {deviation.found:.10g} at {list(deviation.worst)}"
    )


def _inaccurate(deviation: Deviation) -> str:
    """What is out of bound on random data, "" where nothing is. Written so that a NaN ratio is out of bound."""
    if deviation.ratio is not None and deviation.ratio <= 1:
        return ""
    ratio = "no bound" if deviation.ratio is None else f"{deviation.ratio:.3g} times its bound"
    return (
        f"random data: an error is {ratio}; expected {deviation.expected:.6g}, found {deviation.found:.6g} "
        f"at {list(deviation.worst)}"
    )
