"""What was found of one role after one phase, and what would have been right? Computed once for all who measure it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from gradcheck_cli.compute.contents import Content, contents
from gradcheck_cli.compute.faults.scene import Scene
from gradcheck_cli.compute.found import Found
from gradcheck_cli.compute.measure import Shown, shown_per_expert
from gradcheck_cli.compute.reference import Reference, linear
from gradcheck_cli.records.due import since_step
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Buffer, Role
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS, rows
from gradcheck_cli.records.splits import rows_of


@dataclass(frozen=True)
class Stage:
    """One role after one phase: what was found of it, by buffer, and what it is right to find."""

    job: Job
    reference: Reference
    role: Role
    microbatch: int
    found: dict[Buffer, Found]
    _right: dict[Buffer, dict[str, Content]] = field(default_factory=dict)
    _shown: dict[Buffer, list[Shown]] = field(default_factory=dict)

    @property
    def due(self) -> Buffer:
        """The buffer in which the case wants it."""
        if "weight" not in self.found and self.role in WEIGHTS:
            return "main_grad" if self.job.case.fuse_wgrad_accumulation else "grad"
        return next(iter(self.found))

    @cached_property
    def sizes(self) -> list[int]:
        """Rows of each expert in the flattened tensors."""
        return rows(self.job.case, self.role, self.microbatch)

    def rows(self, expert: int) -> slice:
        """The rows of an expert in the flattened tensors."""
        return rows_of(self.sizes, expert)

    def right(self, buffer: Buffer) -> dict[str, Content]:
        """What a buffer may rightly hold, by name."""
        if buffer not in self._right:
            rounding, before = self.job.rounding[self.role], self.found[buffer].before
            self._right[buffer] = contents(
                self.job.case, self.reference, rounding, self.role, buffer, self.microbatch, before
            )
            stood = self.found[buffer].stood
            self._right[buffer] |= {} if stood is None else {"stood": Content(stood.double())}
        return self._right[buffer]

    def shown(self, buffer: Buffer) -> list[Shown]:
        """What there is to be seen of the right gradient, expert by expert."""
        if buffer not in self._shown:
            self._shown[buffer] = shown_per_expert(next(iter(self.right(buffer).values())), self.sizes)
        return self._shown[buffer]

    @cached_property
    def steps(self) -> list[list[torch.Tensor]]:
        """The right contributions of each microbatch so far, expert by expert."""
        return [self._parts(k) for k in range(self.microbatch + 1)]

    @cached_property
    def scene(self) -> Scene:
        """What the value faults look at."""
        case, inputs, since = self.job.case, self.reference.inputs, since_step(self.job.case, self.microbatch)
        operands = linear(case, inputs, self.microbatch, self.role)
        return Scene(
            case=case,
            role=self.role,
            microbatch=self.microbatch,
            x=operands.x,
            weight=operands.weight,
            grad_output=operands.grad_output,
            bias=inputs.bias_of(self.microbatch),
            parts=self.steps[-1],
            earlier=self.steps[:-1],
            stored=[held.tensor for held in self.found[self.due].experts],
            weight_before=linear(case, inputs, since - 1, self.role).weight if since else None,
        )

    def _parts(self, k: int) -> list[torch.Tensor]:
        value = self.reference.roles[k][self.role].value
        return list(value.split(list(self.job.case.splits(k))) if self.role in BY_TOKEN else value)
