"""Which expression is true where a flag, a dummy, or a buffer that nobody asked for is wrong? By the diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.reproduce.wanted import Unscriptable, Wanted


class Wrong(NamedTuple):
    """An expression of i and p that is true where it is wrong, what is wrong then, and of which cases that is said."""

    test: str
    words: str
    asked: Callable[[Case], bool]


EARLY = "before backward_dw"
_WRITTEN = "not torch.equal(p.main_grad, before[i])"

# What makes a PROTOCOL or UNEXPECTED, by its diagnosis.
WRONG = {
    "flag not set": Wrong(
        "p.grad_added_to_main_grad is not True",
        "grad_added_to_main_grad is not True",
        lambda case: case.fuse_wgrad_accumulation and case.grad_added_to_main_grad == "attached",
    ),
    "flag set": Wrong(
        "p.grad_added_to_main_grad",
        "grad_added_to_main_grad is True, and main_grad was not written",
        lambda case: not case.fuse_wgrad_accumulation and case.main_grad == "attached",
    ),
    "dummy": Wrong(
        "p.grad is not None and p.grad.shape != p.shape",
        "the dummy in .grad has another shape",
        lambda case: case.fuse_wgrad_accumulation,
    ),
    "dummy not zero": Wrong(
        "p.grad is not None and (p.grad != 0).any()",
        "the dummy in .grad is not zero",
        lambda case: case.fuse_wgrad_accumulation and case.zero_out_wgrad,
    ),
    "main_grad replaced": Wrong(
        "p.main_grad is not given[i]", "main_grad is another tensor", lambda case: case.main_grad == "attached"
    ),
    "main_grad written": Wrong(
        _WRITTEN,
        "main_grad was written",
        lambda case: not case.fuse_wgrad_accumulation and case.main_grad == "attached",
    ),
    "frozen": Wrong(
        "p.grad is not None",
        "a gradient has arrived that nobody asked for",
        lambda case: case.frozen_weights != "none" or case.frozen_bias or case.frozen_input,
    ),
    EARLY: Wrong(
        _WRITTEN,
        "main_grad was written before backward_dw()",
        lambda case: case.delay_wgrad_compute and case.main_grad == "attached",
    ),
}


def wrong(wanted: Wanted) -> Wrong:
    """The row of a failure; Unscriptable where a few lines cannot look at that, or nobody asks it of the case."""
    case, failure = wanted.case, wanted.failure
    found = WRONG.get(failure.diagnosis)
    if found is None or not found.asked(case):
        raise Unscriptable(f"{failure}: a few lines cannot look at that")
    if failure.diagnosis == "dummy" and case.grad_added_to_main_grad == "absent":
        words = "a dummy is in .grad of a weight without grad_added_to_main_grad"
        return found._replace(test="p.grad is not None", words=words)
    if failure.diagnosis == "frozen" and failure.role == "wgrad" and wanted.attaches_main_grad:
        return found._replace(test=f"{found.test} or {_WRITTEN}")
    return found


def kept(wanted: Wanted) -> list[str]:
    """What must be known before the first microbatch."""
    if wanted.failure.diagnosis == EARLY:
        return ["wrong = []"]
    if wanted.failure.diagnosis == "main_grad replaced":
        return [f"given = [p.main_grad for p in {wanted.parameters}]"]
    return [_before(wanted)] if _WRITTEN in wrong(wanted).test else []


def around(wanted: Wanted) -> tuple[list[str], list[str]]:
    """Lines before each forward and after its backward, where what is wrong is gone once backward_dw was called."""
    if wanted.failure.diagnosis != EARLY:
        return [], []
    return [_before(wanted)], [f"wrong += [i for i, p in enumerate({wanted.parameters}) if {_WRITTEN}]"]


def _before(wanted: Wanted) -> str:
    return f"before = [p.main_grad.clone() for p in {wanted.parameters}]"


def looked_at(wanted: Wanted) -> list[str]:
    """The list of what is wrong, once all microbatches are done."""
    role, said = wanted.failure.role, wanted.failure.diagnosis
    if said == EARLY:
        return []
    if role == "dgrad":
        return ['wrong = ["x.grad"] if x.grad is not None else []']
    test = wrong(wanted).test
    if said == "frozen":
        test = f"not p.requires_grad and ({test})"
    elif wanted.case.frozen_weights != "none":
        test = f"p.requires_grad and {test}"
    return [f"wrong = [i for i, p in enumerate({wanted.parameters}) if {test}]"]
