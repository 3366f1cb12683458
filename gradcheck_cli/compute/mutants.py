"""Could this comparison have failed? Altered copies of what was found, measured as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

import msgspec
import torch

from gradcheck_cli.compute.alterations import Altered, alterations
from gradcheck_cli.compute.contents import Content
from gradcheck_cli.compute.found import Found
from gradcheck_cli.compute.measure import measure
from gradcheck_cli.compute.stage import Stage
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.observation import Buffer, Phase, PhaseSeen, SlotSeen
from gradcheck_cli.records.roles import WEIGHTS

AT_ONCE = 1 << 24  # elements measured in one call; a few dozen fp64 tensors of that size are alive meanwhile


def mutated(stage: Stage, phase: Phase) -> list[PhaseSeen]:
    """What was found after a phase as each mutant would have left it; of those that would have left it so, nothing."""
    held_back = any(one.before is not None for one in stage.found.values())
    alone = (
        "step" if "weight" in stage.found else "early" if held_back else ""
    )  # of the kinds that are found by themselves
    own = [
        one
        for one in (MUTANTS[name] for name in stage.job.mutants)
        if one.role == stage.role
        and (one.fault.kind if one.fault.kind in ("early", "step") else "") == alone
        and stage.reference.fill in one.fault.fills
    ]
    slots: dict[str, list[SlotSeen]] = {one.name: [] for one in own if one.fault.kind == "unseen"}
    for buffer, altered in alterations(stage, own).items():
        for one, slot in zip(altered, measured(stage, buffer, altered), strict=True):
            slots.setdefault(one.mutant.name, []).append(slot)
    return [PhaseSeen(mutant=name, microbatch=stage.microbatch, phase=phase, slots=s) for name, s in slots.items()]


def measured(stage: Stage, buffer: Buffer, altered: list[Altered]) -> Iterator[SlotSeen]:
    """Each altered part as a slot of its own expert, measured like what was found."""
    right, shown = stage.right(buffer), stage.shown(buffer)
    width = next(iter(right.values())).value.shape[-1]
    for some in chunks(altered, [stage.sizes[one.expert] * width for one in altered]):
        measures = measure(
            Found(stage.role, buffer, [one.held for one in some]),  # compared with these contents, whatever was before
            {name: joined(content.part(stage.rows(one.expert)) for one in some) for name, content in right.items()},
            [stage.sizes[one.expert] for one in some],
            stage.job.rounding[stage.role].lambda_,
            bounded=stage.reference.fill == "normal",
            shown=[shown[one.expert] for one in some],
            # Where a wgrad went is told by distances; those of other slots serve to explain, and nothing is to be.
            distances=stage.role in WEIGHTS,
        )
        for one, slot in zip(some, measures, strict=True):
            yield msgspec.structs.replace(slot, expert=one.expert)


def joined(parts: Iterable[Content]) -> Content:
    """The contents of several parts one after the other."""
    several = list(parts)

    def of(name: str) -> torch.Tensor | None:
        tensors = [tensor for tensor in (getattr(one, name) for one in several) if tensor is not None]
        return torch.cat(tensors) if tensors else None

    whole = {field.name: of(field.name) for field in fields(Content) if field.name != "otherwise"}
    orders = zip(*(one.otherwise for one in several), strict=True)
    return Content(**whole, otherwise=tuple(map(torch.cat, orders)))  # type: ignore[arg-type]


def chunks(altered: list[Altered], elements: list[int]) -> Iterator[list[Altered]]:
    """Runs of parts that are small enough together; a part that is not is measured alone."""
    some: list[Altered] = []
    total = 0
    for one, size in zip(altered, elements, strict=True):
        if some and total + size > AT_ONCE:
            yield some
            some, total = [], 0
        some.append(one)
        total += size
    if some:
        yield some
