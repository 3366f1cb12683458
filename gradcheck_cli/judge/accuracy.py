"""Is what arrived right? Non-finite, inexact on exact data, out of bound on random data, or unable to tell."""

from __future__ import annotations

from typing import Any

from gradcheck_cli.judge.bounds import LAMBDA, NONZERO_SHARE
from gradcheck_cli.judge.contract import Expected
from gradcheck_cli.judge.diagnosis import diagnose
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import DATA, INFINITE, ChannelSeen, Deviation, Fill, SlotSeen
from gradcheck_cli.records.verdict import Outcome


def accuracy(case: Case, wanted: Expected, slot: SlotSeen, channel: ChannelSeen, lambda_: float = LAMBDA) -> Judgement:
    """The outcome of comparing one slot with what it must hold."""
    deviation, fill = slot.contents.get(wanted.content), channel.fill
    if deviation is None:
        return Judgement(outcome=Outcome.UNTESTED, why="expected a comparison; none could be made")
    if deviation.compared < wanted.elements:
        why = f"expected a comparison of {wanted.elements} elements; found {deviation.compared} compared"
        return Judgement(outcome=Outcome.UNTESTED, why=why)
    if slot.nonfinite:
        why = f"expected finite values; found {slot.nonfinite} of {deviation.compared} NaN or infinite"
        named = diagnose(slot, wanted.content, case.dtype, fill) or "not finite"
        return Judgement(outcome=Outcome.NONFINITE, why=why, diagnosis=named)
    figures: dict[str, Any] = {
        "ratio": deviation.ratio,
        "after_rounding": deviation.after_rounding,
        "smallest_lambda": deviation.smallest_lambda,
    }
    exponent = channel.exponents.get(wanted.role, 0)
    wrong = _inexact(deviation, exponent) if fill != "normal" else _inaccurate(deviation, lambda_)
    if wrong:
        outcome = Outcome.INEXACT if fill != "normal" else Outcome.INACCURATE
        named = diagnose(slot, wanted.content, case.dtype, fill)
        return Judgement(outcome=outcome, why=wrong, diagnosis=named, **figures)
    untold = _vacuous(case, wanted, slot, fill)
    if untold:
        return Judgement(outcome=Outcome.VACUOUS, why=untold)
    return Judgement(outcome=Outcome.PASSED, why="", **figures)


def _inexact(deviation: Deviation, exponent: int) -> str:
    """What differs on integers times a power of two, "" where nothing does."""
    if deviation.differing == 0:
        return ""
    expected, found = (value * 2.0**-exponent for value in (deviation.expected, deviation.found))
    unit = f", in units of 2^{exponent}" if exponent else ""
    return (
        f"{deviation.differing} of {deviation.compared} elements differ; "
        f"expected {expected:.10g}, found {found:.10g} at {list(deviation.worst)}{unit}"
    )


def _inaccurate(deviation: Deviation, lambda_: float) -> str:
    """What is out of bound on random data, "" where nothing is. Written so that a NaN is out of bound.

    `ratio` and `worst` were taken against the bound of the run, which another lambda does not change.
    """
    needed = deviation.smallest_lambda
    if needed is not None and needed <= lambda_:
        return ""
    ratio = "without a bound" if deviation.ratio is None else f"{deviation.ratio:.3g} times its bound"
    at = f"expected {deviation.expected:.6g}, found {deviation.found:.6g} at {list(deviation.worst)}"
    if lambda_ == LAMBDA or needed is None:
        return f"an error is {ratio}; {at}"
    asked = "no lambda allows" if needed >= INFINITE else f"only lambda = {needed:.3g} allows"
    return (
        f"expected errors that lambda = {lambda_:g} allows, found one that {asked}; "
        f"in the run, with lambda = {LAMBDA:g}, the largest was {ratio}: {at}"
    )


def _vacuous(case: Case, wanted: Expected, slot: SlotSeen, fill: Fill) -> str:
    """Why a wrong gradient could have passed, "" where none could; a slot that must be zero is proved otherwise."""
    if wanted.empty:
        return ""
    zeros = wanted.elements - slot.nonzero_expected
    if slot.nonzero_expected <= NONZERO_SHARE * wanted.elements:
        return (
            f"expected values that tell a gradient from none; found {zeros} of {wanted.elements} expected values "
            f"to be 0 on {DATA[fill]}: a zeroed gradient would hardly differ"
        )
    # Uniform by the choice of the axis: the verdict's notes say what that hides.
    chosen = wanted.role == "bgrad" and case.grad_output == "expanded"
    if slot.uniform and not chosen:
        return (
            f"expected values that tell their places apart; found all {wanted.elements} expected values to be equal "
            f"on {DATA[fill]}: any order of them would have passed"
        )
    return ""
