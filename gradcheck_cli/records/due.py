"""Where is a weight gradient due, and on top of what? Read from a case alone, expert by expert."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import DtypeName
from gradcheck_cli.records.observation import Buffer, Phase

# What may be in .grad beside a fused main_grad: a dummy of any content, one that is exactly zero, or nothing at all.
Dummy = Literal["any", "zero", "none"]


class Due(NamedTuple):
    """What the gradient's own buffer holds after a microbatch: the sum of microbatches `since` to that one."""

    buffer: Buffer  # grad or main_grad
    since: int
    prefill: bool  # they were added to what main_grad held before all of them


def due(case: Case, expert: int, microbatch: int) -> Due | None:
    """Where the wgrad of an expert is due once a microbatch is done; None where its weight is frozen."""
    if frozen(case, expert):
        return None
    zeroed = since_step(case, microbatch)
    if not case.fuse_wgrad_accumulation:
        return Due("grad", zeroed, prefill=False)
    written = [k for k in range(zeroed, microbatch + 1) if overwrites(case, expert, k)]
    return Due("main_grad", written[-1] if written else zeroed, prefill=not written and not zeroed)


def hooks_of(case: Case) -> int | None:
    """How often a backward must hand autograd a gradient of each weight that learns, or a dummy, for the hooks there.

    None where the contract does not say: with `backward_dw`, and where no wrapper has marked the parameter.
    """
    marked = case.grad_added_to_main_grad == "attached" or not case.fuse_wgrad_accumulation
    return 1 if marked and not case.delay_wgrad_compute else None


def steps_of(case: Case) -> list[tuple[int, ...]]:
    """The microbatches of each backward, in order: with tied weights two, and one where it has no partner."""
    each = 2 if case.tied_weights else 1
    return [tuple(range(k, min(k + each, case.microbatches))) for k in range(0, case.microbatches, each)]


def stepped_after(case: Case, microbatch: int) -> bool:
    """Whether an optimizer takes a step before the microbatch after this one."""
    ends = [step[-1] for step in steps_of(case)]
    return case.optimizer != "none" and microbatch in ends[:-1]


def since_step(case: Case, microbatch: int) -> int:
    """The first microbatch whose gradients are still there: those before were zeroed after a step of the optimizer."""
    return next((k + 1 for k in reversed(range(microbatch)) if stepped_after(case, k)), 0)


def joined(step: tuple[int, ...]) -> str:
    """The microbatches of one backward in words: `2 and 3`."""
    return " and ".join(map(str, step))


def paired(case: Case, microbatch: int) -> tuple[int, ...]:
    """The microbatches up to this one whose backward goes through the output of another as well.

    Counted from the last step of an optimizer.
    """
    since = since_step(case, microbatch)
    both = [k for step in steps_of(case) if len(step) > 1 and since <= step[0] and step[-1] <= microbatch for k in step]
    return tuple(k - since for k in both)


def frozen(case: Case, expert: int) -> bool:
    """Whether an expert's weight asks for no gradient."""
    whose = {"none": (), "all": range(case.num_gemms), "first": (0,), "last": (case.num_gemms - 1,)}
    return expert in whose[case.frozen_weights]


def overwrites(case: Case, expert: int, microbatch: int) -> bool:
    """Whether a microbatch's wgrad replaces what main_grad holds instead of being added to it.

    By `overwrite_main_grad` of the parameter, or by `is_first_microbatch=True` of the call
    (transformer_engine/pytorch/module/grouped_linear.py, `accumulate_wgrad_into_param_main_grad`).
    """
    if not case.fuse_wgrad_accumulation:
        return False
    return overwriting(case, expert) or is_first(case, microbatch) is True


def overwriting(case: Case, expert: int) -> bool:
    """Whether the parameter of an expert says `overwrite_main_grad`; of some it is every second one."""
    return {"none": False, "all": True, "some": expert % 2 == 1}[case.overwrite_main_grad]


def overwriting_at_all(case: Case) -> bool:
    """Whether any wgrad of a case replaces what main_grad holds."""
    return case.overwrite_main_grad != "none" or case.is_first_microbatch != "unset"


def anew(case: Case) -> bool:
    """Whether a main_grad may hold something else than its prefill and all that was added since."""
    return overwriting_at_all(case) or (case.optimizer != "none" and case.fuse_wgrad_accumulation)


def is_first(case: Case, microbatch: int) -> bool | None:
    """The `is_first_microbatch` of a call, True again after each step of an optimizer; None where it is not given."""
    return None if case.is_first_microbatch == "unset" else microbatch == since_step(case, microbatch)


def built_dtype(case: Case) -> DtypeName:
    """The dtype in which a layer is to be built: what it has before it is moved."""
    return "fp32" if case.moved == "to_dtype" else case.dtype


def delivered_in(case: Case) -> Phase:
    """The phase after which the gradients of the weights must be there."""
    return "backward_dw" if case.delay_wgrad_compute else "backward"


def dummy_of(case: Case) -> Dummy:
    """What may be in .grad of a weight whose wgrad is in main_grad."""
    if case.grad_added_to_main_grad == "absent":
        return "none"
    return "zero" if case.zero_out_wgrad else "any"


def x_dtype(case: Case) -> DtypeName:
    """The dtype of x and of x.grad."""
    return "fp32" if case.autocast else case.dtype
