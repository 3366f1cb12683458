"""Which fault explains a wrong value? Names it from the distances to known wrong contents."""

from __future__ import annotations

from gradcheck_cli.judge.bounds import recognised
from gradcheck_cli.records.observation import INFINITE, Fill, SlotSeen

NAMES = {
    "prefill": "untouched",
    "zero": "zero",
    "doubled": "doubled",
    "last": "last microbatch only",
    "first": "first microbatch only",
    "sum": "prefill lost",
    "prefill+doubled": "doubled",
    "prefill+last": "last microbatch only",
    "prefill+first": "first microbatch only",
}


def diagnose(slot: SlotSeen, content: str, dtype: str, fill: Fill) -> str:
    """The name of the wrong content that the slot holds, "" where it holds none that is known.

    Exact data must match it bit for bit; random data within a few output roundings.
    """
    allowed = 0.0 if fill == "exact" else recognised(dtype)
    # A hypothesis no nearer than the right content explains nothing: for this slot it may say the same as the contract.
    right = slot.residuals.get(content, INFINITE)
    held = {name: distance for name, distance in slot.residuals.items() if distance <= allowed and distance < right}
    if slot.nonfinite or not held:
        return ""
    return NAMES.get(min(held, key=lambda name: held[name]), "")
