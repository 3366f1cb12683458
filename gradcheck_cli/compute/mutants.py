"""Could this comparison have failed? Altered copies of what was found, measured as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

import msgspec
import torch

from gradcheck_cli.compute.alterations import Altered, Stage, alterations
from gradcheck_cli.compute.contents import Content, contents
from gradcheck_cli.compute.measure import measure
from gradcheck_cli.compute.observe import Found
from gradcheck_cli.compute.reference import Reference
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Buffer, Phase, PhaseSeen, SlotSeen

AT_ONCE = 1 << 24  # elements measured in one call; a few dozen fp64 tensors of that size are alive meanwhile


def mutated(job: Job, found: list[Found], reference: Reference, microbatch: int, phase: Phase) -> list[PhaseSeen]:
    """What was found after a phase as each mutant would have left it; of those that would have left it so, nothing."""
    phases: list[PhaseSeen] = []
    wanted = [MUTANTS[name] for name in job.mutants]
    for role in dict.fromkeys(one.role for one in found):
        stage = Stage(job, reference, role, microbatch, {one.buffer: one for one in found if one.role == role})
        held_back = any(one.before is not None for one in stage.found.values())
        own = [
            one
            for one in wanted
            if (one.role, one.fault.kind == "early") == (role, held_back) and reference.fill in one.fault.fills
        ]
        slots: dict[str, list[SlotSeen]] = {one.name: [] for one in own if one.fault.kind == "unseen"}
        for buffer, altered in alterations(stage, own).items():
            for one, slot in zip(altered, measured(stage, buffer, altered), strict=True):
                slots.setdefault(one.mutant.name, []).append(slot)
        phases += [PhaseSeen(mutant=name, microbatch=microbatch, phase=phase, slots=s) for name, s in slots.items()]
    return phases


def measured(stage: Stage, buffer: Buffer, altered: list[Altered]) -> Iterator[SlotSeen]:
    """Each altered part as a slot of its own expert, measured like what was found."""
    job, reference, role = stage.job, stage.reference, stage.role
    rounding, sizes = job.rounding[role], stage.sizes
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    right = contents(job.case, reference, rounding, role, buffer, stage.microbatch, stage.found[buffer].before)
    width = next(iter(right.values())).value.shape[-1]
    bounded = reference.fill == "normal"
    for some in chunks(altered, [sizes[one.expert] * width for one in altered]):
        slices = [slice(starts[one.expert], starts[one.expert] + sizes[one.expert]) for one in some]
        own = {name: joined(content.part(rows) for rows in slices) for name, content in right.items()}
        found = Found(role, buffer, [one.held for one in some])  # compared with `own`, whatever was there before
        rows = [sizes[one.expert] for one in some]
        for one, slot in zip(some, measure(found, own, rows, rounding.lambda_, bounded=bounded), strict=True):
            # Where a wgrad went is told by distances; those of other slots serve to explain, and nothing is to be.
            residuals = slot.residuals if role == "wgrad" else {}
            yield msgspec.structs.replace(slot, expert=one.expert, residuals=residuals)


def joined(parts: Iterable[Content]) -> Content:
    """The contents of several parts one after the other."""
    several = list(parts)

    def of(name: str) -> torch.Tensor | None:
        tensors = [tensor for tensor in (getattr(one, name) for one in several) if tensor is not None]
        return torch.cat(tensors) if tensors else None

    return Content(**{field.name: of(field.name) for field in fields(Content)})  # type: ignore[arg-type]


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
