"""Which known fault would leave what was found? Distances to wrong contents, taken where nothing right is held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch

from gradcheck_cli.compute.contents import as_stored
from gradcheck_cli.compute.experts import at_once, microbatch_of_expert, through_each
from gradcheck_cli.compute.measure import relative
from gradcheck_cli.compute.poison import poisoned
from gradcheck_cli.compute.quantised import SUMMED
from gradcheck_cli.compute.reference import Reference, linear
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import anew, due, paired, since_step
from gradcheck_cli.records.observation import Buffer, Role
from gradcheck_cli.records.recipe import recipe_of
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS, contracted, is_chain
from gradcheck_cli.records.splits import rows_of

LONGEST_SHIFT = 8
TAILS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Hypotheses:
    """What one role may wrongly hold in one buffer once microbatch k is done; called with an expert and its part."""

    case: Case
    reference: Reference
    role: Role
    buffer: Buffer
    k: int
    rounded: bool = False  # what is added is rounded to the case's dtype first
    _of: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, expert: int, raw: torch.Tensor) -> dict[str, float]:
        """Hypothesis, `name` or `name=parameter` -> |found - it| / |expected|, Frobenius; raw (rows, C) as it was read.

        Where a hypothesis has a parameter, only the nearest is kept.
        """
        if not raw.numel():
            return {}
        found = raw.double()
        value = self.start(expert) + self.of(expert)
        size = float(value.norm())
        distances = dict(poisoned(raw, found, value, size))
        found = torch.where(found.isfinite(), found, 0.0)
        alone = (*self.fixed(expert, found), *self.without_a_token(expert, found))
        # A row of pgrad is no product with a weight.
        products = () if self.role == "pgrad" else (self.shortened, self.without_a_use, self.stale)
        families = (self.shifted, self.unquantised, self.as_it_lies, *products)
        groups = [[(name, (found - wrong).norm())] for name, wrong in alone]
        groups += [[(name, (found - wrong).norm()) for name, wrong in family(expert)] for family in families]
        groups += [] if self.role == "pgrad" else [list(self.from_others(expert, found))]
        # One transfer from the device for all of them.
        norms = iter(torch.stack([norm for group in groups for _, norm in group]).tolist())
        for group in groups:
            away = {name: next(norms) for name, _ in group}
            for name in sorted(away, key=lambda one: away[one])[:1]:
                distances[name] = relative(away[name], size)
        return distances

    def start(self, expert: int) -> torch.Tensor:
        """What was there before, (rows, C)."""
        if self.buffer != "main_grad":
            return torch.zeros_like(self.steps(expert)[0])
        where, prefill = due(self.case, expert, self.k), self.prefill(expert)
        return prefill if where is None or where.prefill else torch.zeros_like(prefill)

    def prefill(self, expert: int) -> torch.Tensor:
        """What main_grad held before the first microbatch, or since it was zeroed, (N, K)."""
        prefill = self.reference.inputs.prefill_of(self.role)[expert].double()
        return torch.zeros_like(prefill) if anew(self.case) and since_step(self.case, self.k) else prefill

    def steps(self, expert: int) -> list[torch.Tensor]:
        """What each microbatch so far adds; of an output or its gradient only the last."""
        own = [self.reference.roles[k][self.role].value for k in self.held(expert)]
        rows = rows_of(self.case.splits(self.k), expert)
        values = [value[rows] if self.role in BY_TOKEN else value[expert] for value in own]
        return [self.as_added(value.reshape(-1, value.shape[-1])) for value in values]

    def held(self, expert: int) -> range:
        """The microbatches of which something is held."""
        if self.role in BY_TOKEN:
            return range(self.k, self.k + 1)
        where = due(self.case, expert, self.k) if self.buffer == "main_grad" else None
        return range(where.since if where else since_step(self.case, self.k), self.k + 1)

    def as_added(self, value: torch.Tensor) -> torch.Tensor:
        """A microbatch's result as the path adds it."""
        return as_stored(self.case, value) if self.rounded else value

    def of(self, expert: int) -> torch.Tensor:
        """The right gradient, (rows, C)."""
        if expert not in self._of:
            self._of[expert] = torch.stack(self.steps(expert)).sum(0)
        return self._of[expert]

    def fixed(self, expert: int, found: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Faults without a parameter, and the least-squares factor."""
        start, steps = self.start(expert), self.steps(expert)
        right = torch.stack(steps).sum(0)
        energy = float(right.square().sum())
        factor = float(((found - start) * right).sum()) / energy if energy else 0.0
        if self.buffer == "main_grad":
            yield "untouched", self.prefill(expert)
            yield "prefill lost", right
            yield "not overwritten", self.prefill(expert) + right
            yield "accumulated in bf16", self.in_bf16(start, steps)
        yield "zero", torch.zeros_like(start)
        yield f"scaled={factor:.6g}", start + factor * right
        if self.k and self.role not in BY_TOKEN:
            yield "last", start + steps[-1]
            yield "first", start + steps[0]
            yield "overwritten", steps[-1]
            yield "doubled before each", self.doubling(start, steps)
        if self.role in WEIGHTS:
            yield "transposed", start + right.T.reshape(right.shape)
            yield "transposed=back", start + right.reshape(right.shape[::-1]).T
        yield from self.biased(expert, right)

    def biased(self, expert: int, right: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """fprop with another bias than its own."""
        inputs = self.reference.inputs
        added = inputs.bias_of(self.k) if self.role == "fprop" else None
        if added is None:
            return
        bias = added[expert].double()
        yield "bias missing", right - bias
        yield "bias twice", right + bias
        if inputs.biases and since_step(self.case, self.k):
            yield "bias stale", right - 2 * bias  # each step negates it

    def in_bf16(self, start: torch.Tensor, steps: list[torch.Tensor]) -> torch.Tensor:
        """main_grad rounded to bf16 after each microbatch."""
        return list(accumulate(steps, lambda sum_, step: (sum_ + step).bfloat16().double(), initial=start))[-1]

    def doubling(self, start: torch.Tensor, steps: list[torch.Tensor]) -> torch.Tensor:
        """The buffer added to itself before each microbatch."""
        return list(accumulate(steps, lambda sum_, step: 2 * sum_ + step, initial=start))[-1]

    def shifted(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Rows moved by a few, around the end."""
        start, right = self.start(expert), self.of(expert)
        for by in range(-min(LONGEST_SHIFT, len(right) - 1), min(LONGEST_SHIFT, len(right) - 1) + 1):
            if by:
                yield f"shift={by}", start + right.roll(by, 0)

    def unquantised(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Products of the operands as they are, where a recipe quantises them."""
        if self.role not in SUMMED or self.reference.fill != "normal" or recipe_of(self.case) is None:
            return
        lost = torch.zeros_like(self.of(expert))
        for k, step in zip(self.held(expert), self.steps(expert), strict=True):
            raw = microbatch_of_expert(self.case, self.reference.inputs, k, self.role, expert, unquantised=True)
            lost = lost + raw.reshape(step.shape) - step
        yield "unquantised", self.start(expert) + self.of(expert) + lost

    def as_it_lies(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Products of a transposed x or grad_output of which nobody asks the strides: its memory, row by row."""
        layouts = {"grad_output": self.case.grad_output, "x": self.case.input_layout}
        for name in () if self.case.tail_rows or is_chain(self.case) else layouts:
            if layouts[name] != "transposed":
                continue
            own = getattr(self.reference.inputs, name)
            rows: dict[str, Any] = {name: tuple(one.T.reshape(one.shape) for one in own)}
            read = replace(self.reference.inputs, **rows)
            products = (microbatch_of_expert(self.case, read, k, self.role, expert) for k in self.held(expert))
            # No integers that the dtype holds: other experts' elements have other scales.
            kept = self.as_added if self.buffer == "main_grad" else lambda one: as_stored(self.case, one)
            wrong = [kept(one).reshape(self.of(expert).shape) for one in products]
            yield f"strides={name}", self.start(expert) + torch.stack(wrong).sum(0)

    def from_others(self, expert: int, found: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """How far another expert's gradient is; of an output, the right rows through another's weight."""
        away = torch.cat([(found - wrong).flatten(1).norm(dim=1) for wrong in self.others(expert, found.numel())])
        yield from ((f"expert={other}", one) for other, one in enumerate(away.unbind()) if other != expert)

    def others(self, expert: int, elements: int) -> Iterator[torch.Tensor]:
        """Of each expert in turn, what this one would then hold, (experts, rows, C), some at once."""
        if self.role in BY_TOKEN:
            yield from map(self.as_added, through_each(self.case, self.reference.inputs, self.k, self.role, expert))
            return
        every, some = range(self.case.num_gemms), at_once(elements)
        for first in every[::some]:
            yield self.start(expert) + torch.stack([self.of(other) for other in every[first : first + some]])

    def shortened(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The last few products of each sum left out, in the last microbatch or in all of them."""
        start, right, inputs = self.start(expert), self.of(expert), self.reference.inputs
        tokens = self.case.splits(self.k)[expert]
        whole = contracted(self.case, self.role) if self.role in BY_TOKEN else tokens
        for tail in sorted({*TAILS, *(whole // parts for parts in (2, 4, 8) if whole >= parts)}):
            missing = torch.zeros_like(right)
            for k in [self.k] if self.role in BY_TOKEN else range(since_step(self.case, self.k), self.k + 1):
                part = microbatch_of_expert(self.case, inputs, k, self.role, expert, only_last=tail)
                missing = missing + part.reshape(right.shape)
            yield f"tail={tail}", start + right - missing

    def stale(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The rows through a weight that was there before a step of an optimizer."""
        inputs = self.reference.inputs
        for k in range(since_step(self.case, self.k)) if self.role in BY_TOKEN else ():
            stale = replace(inputs, weights=(inputs.weight_of(k),) * self.case.microbatches)
            yield f"stale weight={k}", self.as_added(microbatch_of_expert(self.case, stale, self.k, self.role, expert))

    def without_a_use(self, expert: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradient without one of two uses of tied weights in one step."""
        for k in () if self.role in BY_TOKEN else paired(self.case, self.k):
            yield (
                f"use={k + since_step(self.case, self.k)}",
                self.start(expert) + self.of(expert) - self.steps(expert)[k],
            )

    def without_a_token(self, expert: int, found: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradient without the token that the error points at.

        Of a sum it is the token whose own product, g_t x_t^T or g_t, the error resembles most; every token has one,
        since the data's signature leaves no row of x or of grad_output all zero.
        """
        wanted = self.start(expert) + self.of(expert)
        error = wanted - found
        if self.role in BY_TOKEN:
            worst = int(error.norm(dim=1).argmax())
            without = wanted.clone()
            without[worst] = 0
            yield f"token={worst} of microbatch {self.k}", without
            return
        inputs = self.reference.inputs
        best: tuple[float, str, torch.Tensor] | None = None
        for k in range(since_step(self.case, self.k), self.k + 1):
            operands, there = linear(self.case, inputs, k, self.role), rows_of(self.case.splits(k), expert)
            x, g = (rows[there].double() for rows in (operands.x, operands.grad_output))
            x = x if self.role in WEIGHTS else torch.ones_like(x[:, :1])
            if not len(x):
                continue
            matrix = error if self.role in WEIGHTS else error.reshape(-1, 1)
            share = ((g @ matrix) * x).sum(1) / (g.square().sum(1) * x.square().sum(1)).clamp(min=1e-30)
            at = int((share - 1).abs().argmin())
            away = float((share[at] - 1).abs())
            if best is None or away < best[0]:
                own = torch.outer(g[at], x[at]).reshape(wanted.shape)
                best = away, f"token={at} of microbatch {k}", wanted - own
        if best:
            yield best[1], best[2]
