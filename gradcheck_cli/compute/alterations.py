"""What would each mutant have left in place of what was found?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from gradcheck_cli.compute.faults.deliveries import DELIVERIES, Delivered
from gradcheck_cli.compute.faults.scene import asleep, busiest
from gradcheck_cli.compute.faults.values import VALUES
from gradcheck_cli.compute.found import Held
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.stage import Stage
from gradcheck_cli.records.battery import PARAMETERS, Mutant
from gradcheck_cli.records.due import due, dummy_of, hooks_of, overwriting, paired, since_step
from gradcheck_cli.records.observation import Buffer
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS, is_chain

# Roundings of sum |a||b|. A right gradient of a chain is within lambda = 4 times two of them or so of what is expected
# (`judge/bounds.py`, under "carried"), and what was found may be off by as much the other way.
DROWNED = 16.0
# Of a single layer, of all roundings of its stored results: the bound grants them whole, so that a change of no more
# than half is told from them only where what was found was off by the other half already.
HALF = 0.5


class Altered(NamedTuple):
    """One expert's part of one buffer, as a mutant has it."""

    mutant: Mutant
    expert: int
    held: Held


def alterations(stage: Stage, wanted: list[Mutant]) -> dict[Buffer, list[Altered]]:
    """Every part of a buffer that some mutant leaves otherwise than it was found."""
    kinds = {"value": of_a_value, "delivery": of_a_delivery, "early": of_what_came_early, "step": of_a_step}
    altered: dict[Buffer, list[Altered]] = {}
    for mutant in wanted:
        for buffer, expert, held in kinds[mutant.fault.kind](stage, mutant) if mutant.fault.kind in kinds else ():
            own = mutant.fault.kind == "value" and as_right(stage, expert, held.tensor)
            if not own and not alike(held, stage.found[buffer].experts[expert]):
                altered.setdefault(buffer, []).append(Altered(mutant, expert, held))
    return altered


def of_a_value(stage: Stage, mutant: Mutant) -> Iterator[tuple[Buffer, int, Held]]:
    """The step of this microbatch exchanged for the altered one, in the dtype that was found."""
    own = stage.found[stage.due].experts
    for expert, step in VALUES[mutant.fault.name].altered(stage.scene).items():
        tensor, change = own[expert].tensor, step - stage.scene.parts[expert]
        asked = mutant.fault.required and stage.reference.fill == "normal"
        if tensor is not None and not (asked and drowned(stage, expert, change)):
            exchanged = tensor.double() + change
            yield stage.due, expert, replace(own[expert], tensor=exchanged.to(tensor.dtype))


def of_what_came_early(stage: Stage, _: Mutant) -> Iterator[tuple[Buffer, int, Held]]:
    """What is due later, in main_grad already."""
    for expert in busiest(stage.job.case, stage.microbatch)[:1]:
        held = stage.found["main_grad"].experts[expert]
        if held.tensor is not None and stage.job.case.splits(stage.microbatch)[expert]:
            early = held.tensor.double() + stage.steps[-1][expert]
            yield "main_grad", expert, replace(held, tensor=early.to(held.tensor.dtype))


def of_a_step(stage: Stage, mutant: Mutant) -> Iterator[tuple[Buffer, int, Held]]:
    """A weight that is as it was before the step; a frozen one that is halved."""
    found, case = stage.found["weight"], stage.job.case
    frozen = mutant.fault.name.startswith("frozen")
    for expert in [i for i in busiest(case, stage.microbatch) if asleep(case, stage.role, i) is frozen][:1]:
        held, stood = found.experts[expert], found.stood
        if held.tensor is not None and stood is not None:
            yield "weight", expert, replace(held, tensor=stood[expert] * (0.5 if frozen else 1))


def whose(stage: Stage, mutant: Mutant) -> list[int]:
    """The experts whose delivery a fault spoils, of those that ask for a gradient or that do not.

    The busiest; where some main_grads are overwritten and others added to, the busiest of either.
    """
    case, frozen = stage.job.case, mutant.fault.name.startswith("frozen")
    experts = [i for i in busiest(case, stage.microbatch) if asleep(case, stage.role, i) is frozen]
    if mutant.fault.name == "missing_but_first":
        return experts
    chosen = {overwriting(case, i): i for i in reversed(experts)}.values()
    # What the last microbatch brought, and what those before it did, are seen to be lost where they are much.
    return list(dict.fromkeys([*chosen, *(busiest(case, stage.microbatch, by_now=True)[:1] if is_chain(case) else ())]))


def of_a_delivery(stage: Stage, mutant: Mutant) -> Iterator[tuple[Buffer, int, Held]]:
    """Both buffers of an expert as the fault leaves them."""
    case, name, weight = stage.job.case, mutant.fault.name, stage.role in WEIGHTS
    zeroed = since_step(case, stage.microbatch)
    for expert in whose(stage, mutant):
        where = due(case, expert, stage.microbatch) if weight else None
        since = where.since if where else stage.microbatch if stage.role in BY_TOKEN else zeroed
        prefill = stage.reference.inputs.prefill_of(stage.role)[expert]
        prefill = torch.zeros_like(prefill) if zeroed and where and where.buffer == "main_grad" else prefill
        held = {buffer: found.experts[expert] for buffer, found in stage.found.items()}
        grad, main_grad = held[stage.due if stage.role in BY_TOKEN else "grad"], held.get("main_grad")
        right = Delivered(
            expert=expert,
            packed=case.single_grouped_weight if weight else case.single_grouped_bias,
            fused=case.fuse_wgrad_accumulation and weight,
            dtype=case.dtype,
            steps=[step[expert] for step in stage.steps[since:]],
            prefill=prefill.to(DTYPES[case.main_grad_dtype]) if main_grad and main_grad.present else None,
            grad=grad.tensor,
            main_grad=main_grad.tensor if main_grad else None,
            flag=main_grad.added_flag if main_grad else None,
            hooks=grad.hooks if weight and hooks_of(case) and not asleep(case, stage.role, expert) else None,
            on_top=where is None or where.prefill,
            frozen=asleep(case, stage.role, expert),
            dummy=dummy_of(case),
            paired=paired(case, stage.microbatch) if stage.role in PARAMETERS else (),
            moved=(case.optimizer, case.moved) != ("none", "none"),
        )
        given = DELIVERIES[name](right)
        if given is right:
            continue
        for buffer, before in held.items():
            own = buffer == "main_grad"
            tensors = (given.main_grad, right.main_grad) if own else (given.grad, right.grad)
            after = delivered(before, *tensors, tuple(right.steps[-1].shape))
            if own:
                after = replace(after, added_flag=given.flag, replaced=given.replaced)
            elif given.hooks != right.hooks:
                after = replace(after, hooks=given.hooks)
            yield buffer, expert, after


def delivered(before: Held, given: torch.Tensor | None, right: torch.Tensor | None, part: tuple[int, ...]) -> Held:
    """A buffer with what was put there in place of an expert's part."""
    if given is right:
        return before
    if given is None:
        return Held(added_flag=before.added_flag)
    dtype = str(given.dtype).removeprefix("torch.")
    if given.shape != part:
        return Held(present=True, shape=tuple(given.shape), dtype=dtype)
    return replace(before, tensor=given, present=True, shape=before.shape or part, dtype=dtype)


def alike(held: Held, before: Held) -> bool:
    """Whether nothing tells the two apart."""
    if replace(held, tensor=None) != replace(before, tensor=None):
        return False
    if held.tensor is None or before.tensor is None:
        return held.tensor is before.tensor
    return torch.equal(held.tensor, before.tensor)


def drowned(stage: Stage, expert: int, change: torch.Tensor) -> bool:
    """Whether a change is nowhere larger than roundings, which random data alone cannot tell it from.

    Measured by what is summed, or stored, and not by the bound, so that a bound which is too wide is still seen to be.
    """
    if not is_chain(stage.job.case):
        return bool((change.abs() <= HALF * stored(stage, expert).reshape(change.shape)).all())
    rounding, by_token = stage.job.rounding[stage.role], stage.role in BY_TOKEN
    steps = stage.reference.roles[stage.microbatch : stage.microbatch + 1] if by_token else stage.reference.roles
    scale = torch.stack([step[stage.role].scale for step in steps]).sum(0)
    held = scale if by_token else scale + stage.reference.inputs.prefill_of(stage.role).double().abs()
    limit = DROWNED * (rounding.store * scale + (0.0 if by_token else rounding.buffer * held))
    own = limit[stage.rows(expert)] if by_token else limit[expert]
    return bool((change.abs() <= own.reshape(change.shape)).all())


def stored(stage: Stage, expert: int) -> torch.Tensor:
    """What an expert's right results are rounded by, one rounding for each that is stored: in fp64, of their shape."""
    rounding = stage.job.rounding[stage.role]
    if stage.role in BY_TOKEN:
        return rounding.store * stage.steps[-1][expert].abs()
    since = since_step(stage.job.case, stage.microbatch)
    steps = torch.stack([step[expert] for step in stage.steps[since:]])
    sums = steps.cumsum(0)
    if stage.due == "main_grad" and not since:
        sums = sums + stage.reference.inputs.prefill_of(stage.role)[expert].double()
    each = steps.abs().sum(0) if rounding.rounds_before_adding else torch.zeros_like(sums[0])
    if rounding.rounds_before_adding and stage.job.case.tied_weights:  # autograd joins two uses first
        each = each + steps.sum(0).abs()
    return rounding.store * each + rounding.buffer * sums.abs().sum(0)


def as_right(stage: Stage, expert: int, tensor: torch.Tensor | None) -> bool:
    """Whether each element is right after all, since another order of roundings leads to it: that is no fault."""
    right = next(iter(stage.right(stage.due).values()))
    if not right.otherwise or tensor is None:
        return False
    own, found = right.part(stage.rows(expert)), tensor.double().reshape(-1, tensor.shape[-1])
    return bool(torch.stack([found == value for value in (own.value, *own.otherwise)]).any(0).all())
