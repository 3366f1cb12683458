"""Which integers does a fill draw? Small enough that nothing rounds, or that only what is predicted does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import BF16, FORMATS
from gradcheck_cli.records.observation import Fill
from gradcheck_cli.records.recipe import ACCUMULATED_EXACTLY as IN_FP8
from gradcheck_cli.records.recipe import POWERS, recipe_of

# Exact fill: integers of magnitude 1 to this. Larger ones tell more faults apart, smaller ones need less thinning.
LARGEST = {"bf16": 2, "fp16": 8, "fp32": 64}
# Range fill: the mean of sum |a||b| is this many times the largest exact integer, so that most results need rounding,
# and far enough from fp16's largest number and from 2^24, up to which an fp32 accumulator is exact in any order.
PAST_EXACT = 8
# fp32 holds all that is accumulated in fp32: there the sums stay as much below 2^24, from operands that TF32 holds, so
# that whatever else lies on the way, in bf16 or fp16, has to round.
SHORT_OF_EXACT = 1 / 8
# Range fill: sums stay this far below 2^24, so that whatever fp32 accumulates, in any order and from any number of
# parts, is an exact integer; the tensor cores of Hopper keep at least this many bits when they align their products.
ACCUMULATED_EXACTLY = 2.0**20
LARGEST_OPERAND = 1 << 10
# Range fill: a few operands that bf16 does not hold, odd integers of nine bits, where the dtype does: a path that
# rounds its operands is seen whatever else the data is. Beside them fp16 leaves room for the others up to this.
LONG = (257, 320)
LARGEST_BESIDE_LONG = 64
LONG_IN_ONE_SUM = 4

# Named each time: a candidate may have changed torch's default dtype or device at its import, and data rounded by it
# would hide what it rounds.
PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

TENSORS = ("x", "weight", "grad_output", "bias")

Draw = Callable[[str, tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True)
class Integers:
    """What an integer fill draws: magnitudes 1 to `largest[tensor]`, thinned to a mean of sum |a||b| of `budget`.

    `powers`: of those magnitudes only the powers of two, which a recipe's formats hold whatever the scale.
    """

    largest: dict[str, int]
    budget: float
    prefill_from: int  # added to the magnitudes of the prefill
    long: tuple[str, ...] = ()  # the tensors of which a few elements are `LONG`, at the places of `long`
    powers: bool = False


def integers_of(case: Case, fill: Fill) -> Integers:
    """Which integers a fill draws for a case.

    exact: every partial and stored result is an integer that the dtype holds; the mean stays a third below that.
    range: results cross what the dtype holds and round; in fp32, what any narrower one holds. With mean magnitudes
    x, w, g the three sums have means K x w, N w g and T x g; setting all three to B gives x^2 = B N / (K T),
    w^2 = B T / (K N), g^2 = B K / (N T).
    Of a recipe both draw what its quantisation loses nothing of, in sums that FP8 tensor cores keep exactly.
    """
    stored = FORMATS[case.dtype]
    exact: int = stored.largest_exact_integer
    if fill == "exact":
        narrowest = min(case.dtype, case.main_grad_dtype, key=lambda one: FORMATS[one].precision)
        held = FORMATS[narrowest].largest_exact_integer
        if recipe_of(case):
            return Integers(dict.fromkeys(TENSORS, POWERS[-1]), min(held, IN_FP8) / 3, prefill_from=0, powers=True)
        return Integers(dict.fromkeys(TENSORS, LARGEST[narrowest]), held / 3, prefill_from=0)
    past = PAST_EXACT if case.dtype != "fp32" else SHORT_OF_EXACT
    budget, k, n, t = past * exact, case.in_features, case.out_features, busiest(case) or 1
    expanded = case.grad_output == "expanded"
    if expanded:  # all of grad_output is 1: sums over it cross by the size of the other operand alone
        budget = max(budget, min(ACCUMULATED_EXACTLY, stored.largest) / 4)
        means = {"x": max(budget / t, 3 * exact / math.sqrt(t)), "weight": max(budget / n, 3 * exact / math.sqrt(n))}
    else:
        means = {"x": math.sqrt(budget * n / (k * t)), "weight": math.sqrt(budget * t / (k * n))}
    means["grad_output"] = math.sqrt(budget * k / (n * t))
    # In any product at least one operand may be long: of x and grad_output, or where one is 1, of x and weight.
    long = ("x", "weight" if expanded else "grad_output") if stored.precision > BF16.precision else ()
    held = LARGEST_BESIDE_LONG if case.dtype == "fp16" else min(exact // 2, LARGEST_OPERAND)
    largest = {name: min(max(round(2 * mean - 1), 1), held) for name, mean in means.items()}
    prefill_from = min(exact, 2 * LARGEST_OPERAND) if case.main_grad_dtype == "fp32" else 0
    if recipe_of(case):
        return Integers(dict.fromkeys(TENSORS, POWERS[-1]), min(budget, IN_FP8 / 2), prefill_from, powers=True)
    return Integers(largest | {"bias": largest["x"]}, budget, prefill_from, long)


def integers(case: Case, drawn: Integers, generator: torch.Generator, thinning: int) -> Draw:
    """Integers, thinned so that sums keep to their budget, with a `signature` that thinning leaves alone.

    Only likely here: `reference.py` checks on the data drawn that the fill's argument holds.
    """
    density = densities(case, drawn, thinning)

    def one(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "prefill":
            return prefill(shape, drawn.prefill_from)
        magnitude = torch.randint(1, drawn.largest[name] + 1, shape, generator=generator, device="cpu")
        if drawn.powers:
            magnitude = torch.tensor(POWERS, device="cpu")[magnitude % len(POWERS)]
        sign = torch.randint(0, 2, shape, generator=generator, device="cpu") * 2 - 1
        kept = torch.rand(shape, generator=generator, **PLAIN) < density.get(name, 1.0)
        kept |= signature(name, shape)
        if name in drawn.long:
            at = long(name, shape)
            longer = torch.randint(LONG[0] // 2, LONG[1] // 2, shape, generator=generator, device="cpu") * 2 + 1
            magnitude, kept = torch.where(at, longer, magnitude), kept | at
        return (magnitude * sign * kept).float()

    return one


def signature(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Where an element is nonzero however thin the data: one in each row, at a place of its own.

    Row r of x and of grad_output has it in column r mod C, and from the second turn on one column further; row n of
    expert i's weight in column n + i. No token and no expert is then invisible, and a wrong integer leads to its token.
    """
    marked = torch.zeros(shape, dtype=torch.bool, device="cpu")
    if name == "bias" or not marked.numel():
        return marked
    rows = torch.arange(shape[-2], device="cpu")
    if name == "weight":
        for i in range(shape[0]):
            marked[i, rows, (rows + i) % shape[-1]] = True
    else:
        marked[rows, (rows + rows // shape[-1]) % shape[-1]] = True
    return marked


def long(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Where an operand is longer than bf16: one in every other row, few in one sum, and no two of them in one product.

    x: even tokens, even columns. grad_output: odd tokens. weight: odd columns.
    """
    marked = torch.zeros(shape, dtype=torch.bool, device="cpu")
    columns = shape[-1] if name == "grad_output" else (shape[-1] + (name == "x")) // 2
    if not columns:
        return marked
    rows = torch.arange(shape[-2], device="cpu")[int(name == "grad_output") :: 2][: LONG_IN_ONE_SUM * columns]
    at = rows // 2 % columns
    marked[..., rows, at if name == "grad_output" else 2 * at + (name == "weight")] = True
    return marked


def prefill(shape: tuple[int, ...], start: int = 0) -> torch.Tensor:
    """Integers +-1 to +-7 beyond +-start, nowhere zero, different between neighbours and between experts.

    From a power of two on, the odd ones need one bit more than a buffer of the activations' dtype has: 256 + 1 is 257
    in fp32 and 256 in bf16.
    """
    experts, rows, columns = (torch.arange(size, device="cpu") for size in shape)
    total = 5 * experts[:, None, None] + 3 * rows[None, :, None] + columns[None, None, :]
    step = total % 7 + 1 if not start else 2 * (total % 7) + 1
    return ((start + step) * (1 - 2 * (total % 2))).float()


def busiest(case: Case) -> int:
    """Tokens of the expert that gets most, over all microbatches."""
    per_expert: Iterable[tuple[int, ...]] = zip(*(case.splits(k) for k in range(case.microbatches)), strict=True)
    return max(int(sum(tokens)) for tokens in per_expert)


def densities(case: Case, drawn: Integers, thinning: int) -> dict[str, float]:
    """The share of nonzero elements of each tensor that keeps the mean of sum |a||b| within the budget.

    Each constraint says: this many products (or terms) of these tensors meet in one result.
    """
    mean = {name: (largest + 1) / 2 for name, largest in drawn.largest.items()}
    budget, tokens = drawn.budget / 2**thinning, busiest(case)
    fixed = {"grad_output"} if case.grad_output == "expanded" else set()
    share = {"x": 1.0, "weight": 1.0, "grad_output": 1.0}
    constraints: list[tuple[int, tuple[str, ...]]] = [
        (case.in_features, ("x", "weight")),
        (case.out_features, ("weight", "grad_output")),
        (tokens, ("x", "grad_output")),
        *([(tokens, ("grad_output",))] if case.bias else []),
    ]
    for _ in range(4):
        for terms, names in constraints:
            size = terms * math.prod(share[name] * (1.0 if name in fixed else mean[name]) for name in names)
            free = [name for name in names if name not in fixed]
            for name in free if size > budget else ():
                share[name] *= (budget / size) ** (1 / len(free))
    return share
