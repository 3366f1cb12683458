"""What data does a case run on? Seeded x, weights, biases, grad_output and prefill, in one of three fills."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from gradcheck_cli.compute.integers import PLAIN, Draw, integers, integers_of
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.scales import EIGHTH, halve_digits, level, silence, spread
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import DtypeName
from gradcheck_cli.records.due import frozen, stepped_after
from gradcheck_cli.records.observation import Fill, Role
from gradcheck_cli.records.recipe import recipe_of
from gradcheck_cli.records.roles import is_chain, part

# Integer fills: each tensor times this power of two, so that every product is far from 1, the same of two fills on
# either side of it; nothing rounds for it. What passes through a dtype of fewer exponents, or is cut off or flushed at
# some size, is lost. fp16 leaves less room: its sums reach 2^11 or 2^16, and its smallest number is 2^-24. There one
# operand and two results are subnormal.
SMALL_X = {"x": -70, "weight": 20, "grad_output": 40}
LARGE_X = {"x": 70, "weight": -30, "grad_output": -40}
EXPONENTS: dict[tuple[DtypeName, Fill], dict[str, int]] = {
    ("bf16", "exact"): SMALL_X,
    ("fp32", "exact"): SMALL_X,
    ("fp16", "exact"): {"x": -20, "weight": 1, "grad_output": 3},
    ("bf16", "range"): LARGE_X,
    ("fp32", "range"): LARGE_X,
    ("fp16", "range"): {"x": -2, "weight": -2, "grad_output": -18},
}


# Of a chain an eighth of the hidden features has wide gates, none where there are fewer than eight. N(0, 32^2) reaches
# 100, and the factors cancel: silu(a) b w2 and the gradients of x and of the probabilities are as without them. Another
# eighth has wide units, N(0, 8^2), with narrow gates.
OTHER_EIGHTH = slice(3, None, 8)
WIDE, NARROW_UNITS, NARROW_FC2 = 2.0**5, 2.0**-3, 2.0**-2
WIDE_UNITS, NARROW_GATES = 2.0**3, 2.0**-3
# Probabilities, as a router with a scaling factor gives them.
LEAST_PROB, MOST_PROB = 0.25, 1.25


@dataclass(frozen=True)
class Inputs:
    """All tensors of one case and fill, on the device, in the case's dtype; prefill in fp32.

    Shapes: weight (G, N, K); bias (G, N) or None; x[k] (T_k, K) and grad_output[k] (T_k, N) of microbatch k;
    prefill (G, N, K). `weights[k]` and `biases[k]` are those of microbatch k where an optimizer steps; else
    none is there.
    Of a chain these are fc1's weight and prefill (G, 2 N, K), with fc2's (G, K, N) and the
    probabilities (T_k,) beside them; its grad_output is (T_k, K).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    x: tuple[torch.Tensor, ...]
    grad_output: tuple[torch.Tensor, ...]
    prefill: torch.Tensor
    weight_fc2: torch.Tensor | None = None
    prefill_fc2: torch.Tensor | None = None
    probs: tuple[torch.Tensor, ...] = ()
    quantised_once: bool = False  # under a recipe: the weights, with the scale of their first microbatch
    weights: tuple[torch.Tensor, ...] = ()
    biases: tuple[torch.Tensor, ...] = ()

    def weight_of(self, k: int) -> torch.Tensor:
        """The weight (G, N, K) that microbatch k is multiplied with."""
        return self.weights[k] if self.weights else self.weight

    def bias_of(self, k: int) -> torch.Tensor | None:
        """The bias (G, N) that is added in microbatch k."""
        return self.biases[k] if self.biases else self.bias

    def prefill_of(self, role: Role) -> torch.Tensor:
        """What the main_grad of a layer's weights holds before the first microbatch."""
        own = self.prefill_fc2 if role == "wgrad_fc2" else self.prefill
        assert own is not None  # noqa: S101  only a chain has that role
        return own


def draw(case: Case, fill: Fill, device: torch.device, thinning: int = 0) -> Inputs:
    """The data of a case: the same on every device and for every provider, api, path and layout.

    Drawn on the CPU from a seed made of the case's shape and data axes; `thinning` halves the budget of an integer
    fill that many times.
    """
    generator = torch.Generator(device="cpu").manual_seed(zlib.crc32(f"{case}/{fill}/{thinning}".encode()))
    drawn = normal(generator) if fill == "normal" else integers(case, integers_of(case, fill), generator, thinning)
    exponents = exponents_of(case, fill)

    def one(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.ldexp(drawn(name, shape), torch.tensor(exponents.get(name, 0), device="cpu"))

    dtype, rows = DTYPES[case.dtype], [sum(case.splits(k)) for k in range(case.microbatches)]
    weight = (case.num_gemms, *part(case, "wgrad"))

    def ready(tensor: torch.Tensor, to: torch.dtype = dtype) -> torch.Tensor:
        return tensor.to(to).to(device)

    def prefill(shape: tuple[int, ...]) -> torch.Tensor:
        return ready(one("prefill", shape).to(DTYPES[case.main_grad_dtype]), torch.float32)

    layer = Inputs(
        weight=ready(one("weight", weight)),
        bias=ready(one("bias", weight[:2])) if case.bias else None,
        x=tuple(ready(one("x", (t, *part(case, "dgrad")))) for t in rows),
        grad_output=tuple(ready(_grad_output(case, one, (t, *part(case, "fprop")))) for t in rows),
        prefill=prefill(weight),
    )
    layer, drawn_weights = moving(case, layer, lambda: ready(one("weight", weight)), fill)
    if fill != "normal":
        level(case, drawn_weights, layer.x, layer.grad_output, exponents)
        if fill == "range":
            silence(case, drawn_weights, layer.x, layer.grad_output)
    else:
        halve_digits(case, (layer.weight, *layer.x, *layer.grad_output))
        spread(case, layer.weight, layer.bias, layer.x, layer.grad_output)
    layer = replace(layer, biases=turned(case, layer.bias))
    if case.retain_graph:
        layer = replace(layer, x=tuple(layer.x[k - k % 2] for k in range(case.microbatches)))
    if not is_chain(case):
        return layer
    second = (case.num_gemms, *part(case, "wgrad_fc2"))
    widen(layer.weight, weight_fc2 := ready(one("weight", second)))
    return replace(
        layer,
        weight_fc2=weight_fc2,
        prefill_fc2=prefill(second),
        probs=tuple(ready(one("probs", (t,))) for t in rows),
    )


def moving(
    case: Case, layer: Inputs, another: Callable[[], torch.Tensor], fill: Fill
) -> tuple[Inputs, list[torch.Tensor]]:
    """The same with a weight for each microbatch, where an optimizer moves it, and all the different ones of them.

    On integers those after a step are drawn anew, since no step leaves integers of integers, and a trainer writes them
    over what the step has made. On random data they are not known yet. What is frozen stays.
    """
    if case.optimizer == "none":
        return layer, [layer.weight]
    different, asleep = [layer.weight], [i for i in range(case.num_gemms) if frozen(case, i)]
    weights = []
    for k in range(case.microbatches):
        if k and stepped_after(case, k - 1) and fill != "normal":
            different.append(another())
            different[-1][asleep] = layer.weight[asleep]
        weights.append(different[-1])
    return replace(layer, weights=tuple(weights)), different


def turned(case: Case, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The bias (G, N) of each microbatch, negated by each step: exact in every dtype, and as large as it was."""
    if bias is None or case.optimizer == "none" or case.frozen_bias:
        return ()
    steps = accumulate((stepped_after(case, k) for k in range(case.microbatches - 1)), initial=0)
    return tuple(-bias if step % 2 else bias for step in steps)


def widen(weight: torch.Tensor, weight_fc2: torch.Tensor) -> None:
    """Widen the gates of every eighth hidden feature of a chain, and the units of another eighth, in place.

    What is made of them is as large as ever. Gates and units of unit size stay below 5: where one of 7 is cut off, or a
    gate of 88 overflows in exp(), would be invisible.
    """
    gates, units = weight.chunk(2, dim=1)
    gates[:, EIGHTH] *= WIDE
    units[:, EIGHTH] *= NARROW_UNITS
    weight_fc2[:, :, EIGHTH] *= NARROW_FC2
    gates[:, OTHER_EIGHTH] *= NARROW_GATES
    units[:, OTHER_EIGHTH] *= WIDE_UNITS


def exponents_of(case: Case, fill: Fill) -> dict[str, int]:
    """Every tensor of a case, and every result by its role, is this power of two times an integer; 0 on random data."""
    own = dict(EXPONENTS.get((case.dtype, fill), dict.fromkeys(("x", "weight", "grad_output"), 0)))
    recipe = recipe_of(case)
    if recipe and recipe.delayed:  # the first scale is 1
        own = dict.fromkeys(own, 0)
    if case.grad_output == "expanded":
        own["grad_output"] = 0
    x, weight, grad_output = own.values()
    results = {"fprop": x + weight, "dgrad": grad_output + weight, "wgrad": x + grad_output, "bgrad": grad_output}
    return {**own, "bias": x + weight, "prefill": x + grad_output, **results}


def _grad_output(case: Case, one: Draw, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape, **PLAIN) if case.grad_output == "expanded" else one("grad_output", shape)


def normal(generator: torch.Generator) -> Draw:
    """Normal data of unit outputs: x, grad_output and bias N(0, 1), weights N(0, 1/K); |prefill| is at least 1/2.

    Probabilities are uniform from 1/4 to 5/4, so that no token's share is lost in that of others.
    """

    def one(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "probs":
            return LEAST_PROB + (MOST_PROB - LEAST_PROB) * torch.rand(shape, generator=generator, **PLAIN)
        values = torch.randn(shape, generator=generator, **PLAIN)
        if name == "weight":
            return values / math.sqrt(shape[-1])
        if name == "prefill":
            return values + values.sign() * 0.5
        return values

    return one
