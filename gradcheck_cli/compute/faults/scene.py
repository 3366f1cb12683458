"""What does a fault need to know of the gradient that it spoils?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen, since_step
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS
from gradcheck_cli.records.splits import rows_of


@dataclass(frozen=True)
class Scene:
    """One role of one microbatch, and all that it is computed from: the operands of its layer.

    `parts` and each of `earlier` are the right contributions of a microbatch, fp64, one for each expert: (T_i, N) of
    fprop, (T_i, K) of dgrad, (N, K) of wgrad, (N,) of bgrad. `stored` is what lies in the buffer, in its own dtype, and
    `weight_before` the weight before the last step of an optimizer.
    """

    case: Case
    role: Role
    microbatch: int
    x: torch.Tensor
    weight: torch.Tensor
    grad_output: torch.Tensor
    bias: torch.Tensor | None
    parts: Sequence[torch.Tensor]
    earlier: Sequence[Sequence[torch.Tensor]]
    stored: Sequence[torch.Tensor | None]
    weight_before: torch.Tensor | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each expert in this microbatch."""
        return self.case.splits(self.microbatch)

    def so_far(self, expert: int) -> torch.Tensor:
        """The right result of an expert after this microbatch, fp64: of a parameter the sum of all since a step."""
        held = self.microbatch - since_step(self.case, self.microbatch)
        steps = [*self.earlier[len(self.earlier) - held :], self.parts] if self.role not in BY_TOKEN else [self.parts]
        return torch.stack([step[expert] for step in steps]).sum(0)

    def rows(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x_i and grad_output_i, fp64."""
        own = rows_of(self.tokens, expert)
        return self.x[own].double(), self.grad_output[own].double()

    def factors(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """a (M, n) and b (n, P), fp64, with a b the contribution of an expert, bias left out."""
        if self.role == "fprop":  # grad_output may not be there yet
            x = self.x[rows_of(self.tokens, expert)].double()
            return x, self.weight[expert].double().T
        x, g = self.rows(expert)
        if self.role == "dgrad":
            return g, self.weight[expert].double()
        if self.role in WEIGHTS:
            return g.T, x
        return g.new_ones(1, len(g)), g


class At(NamedTuple):
    """One expert's right contribution, which a fault may write, and the number of another expert."""

    scene: Scene
    expert: int
    other: int
    part: torch.Tensor


def asleep(case: Case, role: Role, expert: int) -> bool:
    """Whether a case asks for no such gradient of an expert."""
    whole = {"dgrad": case.frozen_input, "bgrad": case.frozen_bias}
    return frozen(case, expert) if role in WEIGHTS else whole.get(role, False)


@lru_cache(maxsize=64)
def busiest(case: Case, microbatch: int, *, by_now: bool = False) -> tuple[int, ...]:
    """All experts: first those with tokens in this microbatch, of these first the one with most over all.

    `by_now`: with most in this microbatch. On random data a small step in a large sum shows no fault.
    """
    now = case.splits(microbatch)
    if by_now:
        return tuple(sorted(range(case.num_gemms), key=lambda i: -now[i]))
    over_all = [sum(case.splits(k)[i] for k in range(case.microbatches)) for i in range(case.num_gemms)]
    return tuple(sorted(range(case.num_gemms), key=lambda i: (not now[i], -over_all[i])))
