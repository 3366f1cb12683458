"""Which comparisons do other suites make, and which faults were they tried on? Both as plain functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from faulty_layers import Fault, FaultyLayer

from gradcheck_cli import pipeline
from gradcheck_cli.compute.engine import Engine
from gradcheck_cli.compute.provider import Builder
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Observation

SPLITS, K, N = (64, 0, 128, 64), 128, 96
LAYER = f"torch:api=loop:m_splits={','.join(map(str, SPLITS))}:in_features={K}:out_features={N}:microbatches=1"
# Weights as large models start with: a bound that is absolute is then large beside a dgrad.
WEIGHT_STD = 0.02


class Scene(Protocol):
    """What a fault may compute from: a `FaultyLayer` in its backward, or an `Experiment`."""

    splits: list[int]
    x: torch.Tensor  # (T, K)
    w: torch.Tensor  # (G, N, K)
    g: torch.Tensor  # (T, N), the grad_output


Alter = Callable[[torch.Tensor, Any], torch.Tensor]  # the right gradient and a Scene -> a wrong one
Faulty = dict[str, Alter]  # role -> what is done to it


@dataclass
class Experiment:
    """Four experts in fp64; grad_output is all ones, or random."""

    splits: list[int]
    x: torch.Tensor
    w: torch.Tensor
    g: torch.Tensor

    @classmethod
    def draw(cls, grad_output: str, seed: int = 0) -> Experiment:
        """Normal data that bf16 holds."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        rows = sum(SPLITS)
        x, w = normal(rows, K), normal(len(SPLITS), N, K) * WEIGHT_STD
        g = torch.ones(rows, N) if grad_output == "ones" else normal(rows, N)
        return cls(list(SPLITS), *(tensor.bfloat16().double() for tensor in (x, w, g)))

    def gradients(self, grad_output: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The right ones, in fp64."""
        g = self.g if grad_output is None else grad_output
        return {"dgrad": dgrad(self, g, self.w), "wgrad": wgrad(self, g)}

    def found(self, faults: Faulty) -> dict[str, torch.Tensor]:
        """What a candidate with these faults would leave, rounded to bf16."""
        right = {role: value.clone() for role, value in self.gradients().items()}
        wrong = {role: faults[role](value, self) if role in faults else value for role, value in right.items()}
        return {role: value.bfloat16().double() for role, value in wrong.items()}


def dgrad(scene: Scene, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(T, K), in at least fp32."""
    pairs = zip(wide(g).split(scene.splits), wide(w), strict=True)
    return torch.cat([g_i @ w_i for g_i, w_i in pairs])


def wgrad(scene: Scene, g: torch.Tensor, leave_out: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """(G, N, K), in at least fp32; of one expert so many of the last tokens are left out."""
    expert, tokens = leave_out
    parts = []
    for i, (g_i, x_i) in enumerate(zip(wide(g).split(scene.splits), wide(scene.x).split(scene.splits), strict=True)):
        kept = len(g_i) - (tokens if i == expert else 0)
        parts.append(g_i[:kept].T @ x_i[:kept])
    return torch.stack(parts)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In fp32 where it is narrower, as an accumulator is."""
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


# The faults: each gets a right gradient that it may write into.


def _rows_rolled(rows: torch.Tensor, scene: Scene) -> torch.Tensor:
    rows[: scene.splits[0]] = rows[: scene.splits[0]].roll(1, 0)
    return rows


def _output_rows_rolled(weights: torch.Tensor, _: Scene) -> torch.Tensor:
    weights[0] = weights[0].roll(1, 0)
    return weights


def _swapped(weights: torch.Tensor, _: Scene) -> torch.Tensor:
    return weights[[2, 1, 0, 3]]


def _one_expert(factor: float) -> Alter:
    def alter(weights: torch.Tensor, scene: Scene) -> torch.Tensor:
        right = wgrad(scene, scene.g)  # not rounded yet: a candidate would scale in its accumulator
        right[0] *= factor
        return right.to(weights.dtype)

    return alter


def _without_the_last_column(rows: torch.Tensor, scene: Scene) -> torch.Tensor:
    return dgrad(scene, scene.g[:, :-1], scene.w[:, :-1]).to(rows.dtype)


def _without_tokens(expert: int, tokens: int) -> Alter:
    return lambda weights, scene: wgrad(scene, scene.g, (expert, tokens)).to(weights.dtype)


def _garbage(weights: torch.Tensor, _: Scene) -> torch.Tensor:
    weights[1] = 1e-3
    return weights


def _summed_in_bf16(weights: torch.Tensor, scene: Scene) -> torch.Tensor:
    summed = []
    for g_i, x_i in zip(scene.g.split(scene.splits), scene.x.split(scene.splits), strict=True):
        running = torch.zeros_like(weights[0], dtype=torch.bfloat16)
        for g_t, x_t in zip(g_i, x_i, strict=True):
            running = (running.float() + torch.outer(g_t.float(), x_t.float())).bfloat16()
        summed.append(running)
    return torch.stack(summed).to(weights.dtype)


FAULTS: dict[str, Faulty] = {
    "drop 1 of 64 tokens in wgrad": {"wgrad": _without_tokens(0, 1)},
    "dgrad rows rolled inside an expert": {"dgrad": _rows_rolled},
    "wgrad output rows rolled": {"wgrad": _output_rows_rolled},
    "grad_output misaligned by one token": {
        "dgrad": lambda rows, scene: dgrad(scene, scene.g.roll(1, 0), scene.w).to(rows.dtype),
        "wgrad": lambda weights, scene: wgrad(scene, scene.g.roll(1, 0)).to(weights.dtype),
    },
    "wgrad of two experts swapped": {"wgrad": _swapped},
    "one expert's wgrad x 1.01": {"wgrad": _one_expert(1.01)},
    "one expert's wgrad x 1.003": {"wgrad": _one_expert(1.003)},
    "dgrad misses the last 1/96 of the contraction": {"dgrad": _without_the_last_column},
    "wgrad misses the last 16 of 128 tokens": {"wgrad": _without_tokens(2, 16)},
    "wgrad all zero": {"wgrad": lambda weights, _: weights * 0},
    "wgrad doubled": {"wgrad": lambda weights, _: weights * 2},
    "an empty expert's wgrad is 1e-3 garbage": {"wgrad": _garbage},
    "bf16 accumulation instead of fp32": {"wgrad": _summed_in_bf16},
}


# The policies: whether two tensors are taken for equal.

Policy = Callable[[torch.Tensor, torch.Tensor], bool]


def close(rtol: float, atol: float) -> Policy:
    """Each element within an absolute tolerance and one relative to what is expected."""
    return lambda found, right: bool(((found - right).abs() <= atol + rtol * right.abs()).all())


def rmse(share: float) -> Policy:
    """The root mean square of the error, against the range that both tensors span together."""

    def policy(found: torch.Tensor, right: torch.Tensor) -> bool:
        both = torch.stack([found, right])
        return bool((found - right).square().mean().sqrt() < share * (both.max() - both.min()))

    return policy


POLICIES: dict[str, Policy] = {
    "bf16 default": close(1.6e-2, 1e-5),
    ".05/.05": close(0.05, 0.05),
    ".125/.0675": close(0.0675, 0.125),
    "RMSE < 5% of range": rmse(0.05),
}


def accepts(policy: str, experiment: Experiment, faults: Faulty) -> bool:
    """Whether a policy takes all gradients of a candidate with these faults for right."""
    right = experiment.gradients()
    return all(POLICIES[policy](found, right[role]) for role, found in experiment.found(faults).items())


def layer(fault: Faulty) -> Builder:
    """A candidate with such a fault, for the engine."""
    return lambda case, device: FaultyLayer(case, device, Fault(**fault))  # type: ignore[arg-type]


def seen(case: str, build: Builder, **changed: Any) -> Observation:
    """What the engine sees of another candidate in the place of the one that a case names."""
    job = pipeline.job(Case.parse(case))
    engine = Engine("cpu", [job.target])
    engine.builders[job.target] = build
    return engine.run(type(job)(**{name: getattr(job, name) for name in job.__struct_fields__} | changed))
