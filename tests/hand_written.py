"""What would an observation say? Written by hand from the contract: all is right, but for what is altered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gradcheck_cli.judge.bounds import LAMBDA
from gradcheck_cli.judge.contract import Expected, expected
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import (
    FILLS,
    INFINITE,
    ChannelSeen,
    Deviation,
    Fill,
    Observation,
    PhaseSeen,
    SlotSeen,
)

SlotAlter = Callable[[SlotSeen], SlotSeen | None]


def deviation(fill: Fill, **figures: Any) -> Deviation:
    """A comparison that agrees, of as many elements as any slot has; a ratio as if only the accumulator had erred."""
    bounded = {"ratio": 0.5, "after_rounding": 0.1} if fill == "normal" else {}
    ratio = figures.get("ratio", bounded.get("ratio"))
    if ratio is not None:
        bounded["smallest_lambda"] = min(LAMBDA * ratio, INFINITE)
    agreed: dict[str, Any] = {"compared": 1 << 20, "differing": 0, "largest_error": 0.0, "worst": (0, 0)}
    return Deviation(**{**agreed, "expected": 1.0, "found": 1.0, **bounded, **figures})


def slots(wanted: Expected, fill: Fill) -> list[SlotSeen]:
    """One gradient as the contract asks; a wgrad is looked for in both of its buffers."""
    right, other = deviation(fill), deviation(fill, differing=10, ratio=1e30 if fill == "normal" else None)
    own = SlotSeen(
        role=wanted.role,
        expert=wanted.expert,
        buffer=wanted.buffer,
        present=True,
        shape=wanted.shape,
        dtype=wanted.dtype,
        nonzero_expected=0 if wanted.empty else wanted.elements,
        contents={wanted.content: right},
        residuals={wanted.content: 0.0},
        added_flag=wanted.flag,
    )
    if wanted.role != "wgrad":
        return [own]
    if wanted.buffer == "grad":
        kept = {"prefill": right, "prefill+sum": right if wanted.empty else other}
        main_grad = altered(own, buffer="main_grad", dtype="float32", contents=kept, added_flag=False)
        return [own, altered(main_grad, residuals={"prefill": 0.0, "prefill+sum": 1.0})]
    touched = {"prefill+sum": right, "prefill": right if wanted.empty else other}
    none = SlotSeen(role="wgrad", expert=wanted.expert, buffer="grad", present=False)
    return [altered(own, contents=touched, residuals={"prefill+sum": 0.0, "prefill": 1.0}), none]


def altered(slot: SlotSeen, **fields: Any) -> SlotSeen:
    return msgspec.structs.replace(slot, **fields)


def channel(case: Case, fill: Fill, alter: SlotAlter = lambda slot: slot, **fields: Any) -> ChannelSeen:
    """Everything that the contract names; `alter` changes a slot, or leaves it out."""
    phases: dict[tuple[int, Any], list[SlotSeen]] = {}
    for wanted in expected(case):
        seen = [alter(slot) for slot in slots(wanted, fill)]
        phases.setdefault((wanted.microbatch, wanted.phase), []).extend(slot for slot in seen if slot)
    told = [PhaseSeen(microbatch=k, phase=phase, slots=found) for (k, phase), found in phases.items()]
    return ChannelSeen(**{"fill": fill, "phases": told, **fields})


def observation(case: Case, alter: SlotAlter = lambda slot: slot, fills: tuple[Fill, ...] = FILLS) -> Observation:
    """A whole observation, altered in the same way in every channel."""
    return Observation(case=str(case), ending="finished", channels=[channel(case, fill, alter) for fill in fills])
