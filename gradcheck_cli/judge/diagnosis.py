"""Which fault explains a wrong value? Names it from the distances to known wrong contents."""

from __future__ import annotations

from gradcheck_cli.judge.bounds import NEARER, recognised
from gradcheck_cli.records.observation import INFINITE, Fill, SlotSeen

# Hypothesis of `compute/hypotheses.py` -> the fault's name; where several are held, the first here.
NAMES = {
    "untouched": "untouched",
    "prefill": "untouched",
    "zero": "zero",
    "prefill lost": "prefill lost",
    "not overwritten": "not overwritten",
    "use": "use of tied weights in microbatch {} lost",
    "last": "last microbatch only",
    "first": "first microbatch only",
    "overwritten": "overwritten",
    "stale weight": "holds the weight of microbatch {}",
    "expert": "holds expert {}",
    "strides": "{} read as if contiguous",
    "transposed": "transposed",
    "shift": "rows shifted by {}",
    "tail": "last {} of the contraction missing",
    "bias missing": "bias missing",
    "bias twice": "bias added twice",
    "bias stale": "bias from before a step",
    "accumulated in bf16": "accumulated in bf16",
    "unquantised": "operands not quantised",
    "token": "token {} missing",
    "poison": "uninitialised ({})",
    "scaled": "scaled by {}",
    "doubled before each": "buffer doubled before each microbatch",
}
# What a factor is called where it is one of these.
FACTORS = {2.0: "doubled", -1.0: "negated"}
# Of a factor's digits those that every expert's own roundings leave alone.
DIGITS = {"bf16": 3, "fp16": 3, "fp32": 4}


def diagnose(slot: SlotSeen, content: str, dtype: str, fill: Fill) -> str:
    """The name of the wrong content that the slot holds, "" where it holds none that is known.

    Integers must match it bit for bit; random data within a few output roundings. Of several that match, the simplest.
    """
    allowed = recognised(dtype) if fill == "normal" else 0.0
    # A hypothesis hardly nearer than the right content explains nothing: a small error is near to both.
    # Distances leave out what is not finite, so that there the right content may be as near as the poison.
    right = INFINITE if slot.nonfinite else slot.residuals.get(content, INFINITE) / NEARER
    held = [
        name
        for name, distance in slot.residuals.items()
        if _family(name) in NAMES and distance <= allowed and distance < right and not _is_one(name, allowed)
    ]
    if slot.nonfinite:
        held = [name for name in held if _family(name) == "poison"]
    if not held:
        return ""
    order = list(NAMES)
    # What is nearly zero is near to zero and to a small factor: a hypothesis far behind the nearest is none.
    nearest = min(slot.residuals[name] for name in held)
    held = [name for name in held if slot.residuals[name] <= NEARER * nearest]
    return _in_words(min(held, key=lambda name: order.index(_family(name))), dtype)


def _family(hypothesis: str) -> str:
    return hypothesis.partition("=")[0]


def _is_one(hypothesis: str, allowed: float) -> bool:
    """Whether it is a factor that says nothing: least squares finds one for any error."""
    name, _, parameter = hypothesis.partition("=")
    return name == "scaled" and abs(float(parameter) - 1) <= allowed


def _in_words(hypothesis: str, dtype: str) -> str:
    name, _, parameter = hypothesis.partition("=")
    if name == "scaled":
        factor = float(parameter)
        told = [word for known, word in FACTORS.items() if abs(factor - known) <= recognised(dtype)]
        return told[0] if told else NAMES[name].format(f"{factor:.{DIGITS[dtype]}g}")
    return NAMES[name].format(parameter)
