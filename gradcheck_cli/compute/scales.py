"""What must data be like for a recipe's scales to be seen? Integers that they lose nothing of, and wide random data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.recipe import ALL_DIGITS, AMAX, recipe_of

# The tensors that are quantised, and how many different scales the experts of one have.
QUANTISED = ("x", "weight", "grad_output")
SHIFTS = 3
# What is E4M3 under every recipe.
E4M3_EVERYWHERE = ("x", "weight")
# Random data: E4M3 has normal numbers from 2^-6 to 448, so that beside others that are 2^12 times as large
# some elements lose digits, and none is lost. fp16 has no room for as much.
SPREAD = {"bf16": 2.0**6, "fp16": 2.0**5, "fp32": 2.0**6}
# In E5M2, and in fp16 with ten bits or more.
SUBNORMAL = 2.0**-14
# Which tokens and features are large.
EIGHTH = slice(7, None, 8)


def level(
    case: Case,
    weights: Sequence[torch.Tensor],
    x: Sequence[torch.Tensor],
    grad_output: Sequence[torch.Tensor],
    exponents: dict[str, int],
) -> None:
    """Give each tensor that gets scales of its own such that lose nothing, and others than its neighbours', in place.

    Expert i's x times 2^s, its weight and grad_output times 2^-s, s = i mod 3: fprop and wgrad are as they were, and
    dgrad and bgrad hold smaller integers. Where a scale is a quotient one element of each has the largest magnitude
    that makes it a power of two, its sign kept: in the first row or, where a kernel that ends too early leaves it out,
    the last of the last. Of what E4M3 is due one element has all its digits; beside it the largest is twice the seven.
    """
    recipe = recipe_of(case)
    if recipe is None or case.grad_output == "expanded":
        return
    quotient = recipe.scale == "quotient"
    for name, k, expert, rows in _parts(case, weights, x, grad_output):
        unit = 2.0 ** exponents.get(name, 0)
        # Of one tensor the same in all microbatches, as DelayedScaling keeps the largest.
        digits = name in E4M3_EVERYWHERE or not quotient
        wide = digits and (not quotient or expert % 2 == 0)
        # x and grad_output take turns, and another column each time, lest two of them meet or pile up in one sum.
        turn, width = expert + k + (name == "grad_output"), rows.shape[1]
        column = 3 * (expert + k) + QUANTISED.index(name)
        at = (-1, -1) if turn % 2 else (0, column % width)
        if wide and rows.numel() > 1:
            between = (len(rows) // 2 + (name == "grad_output")) % len(rows)
            _place(rows, (between, (column + max(width // 2, 1)) % width), ALL_DIGITS * unit)
        if quotient:
            _place(rows, at, (2 if wide else 1) * AMAX * unit)
        rows *= 2.0 ** (expert % SHIFTS if name == "x" else -(expert % SHIFTS))


def finest(case: Case, role: Role, scale: torch.Tensor, k: int) -> torch.Tensor:
    """Sums of microbatch k in units of each expert's smallest integer, which `level` made smaller than the first's."""
    power = {"dgrad": 2, "bgrad": 1}.get(role, 0)
    if recipe_of(case) is None or case.grad_output == "expanded" or not power:
        return scale
    parts = scale.split(list(case.splits(k))) if role == "dgrad" else scale.split(1)
    return torch.cat([part * 2.0 ** (power * (expert % SHIFTS)) for expert, part in enumerate(parts)])


def _parts(
    case: Case, weights: Sequence[torch.Tensor], x: Sequence[torch.Tensor], grad_output: Sequence[torch.Tensor]
) -> Iterator[tuple[str, int, int, torch.Tensor]]:
    """Tensor, microbatch and expert of each matrix that is quantised by itself, and the matrix."""
    for weight in weights:
        for expert in range(case.num_gemms):
            yield "weight", 0, expert, weight[expert]
    for k in range(case.microbatches):
        for name, tensor in (("x", x[k]), ("grad_output", grad_output[k])):
            for expert, rows in enumerate(tensor.split(list(case.splits(k)))):
                if len(rows):
                    yield name, k, expert, rows


def _place(rows: torch.Tensor, at: tuple[int, int], magnitude: float) -> None:
    sign = rows[at].sign()
    rows[at] = torch.where(sign == 0, 1, sign) * magnitude


def silence(
    case: Case, weights: Sequence[torch.Tensor], x: Sequence[torch.Tensor], grad_output: Sequence[torch.Tensor]
) -> None:
    """Make a tensor of an expert zero, whose scale is then no quotient: x, grad_output and a weight, in place.

    Each of another expert, those with fewest tokens first. x and grad_output are zero in the last microbatch, and wgrad
    has what the others brought; x where a bias is left as the output. A weight is zero all along, where two others are
    left that nothing is taken of: of its expert the exact fill tells fprop and dgrad.
    """
    last = case.microbatches - 1
    tokens = case.splits(last)
    busy = sorted((one for one in range(case.num_gemms) if tokens[one]), key=lambda one: tokens[one])
    if recipe_of(case) is None or case.microbatches == 1 or len(busy) < 2:
        return
    biased = case.bias and not case.return_bias
    if biased and _earlier(case, busy[0]):
        x[last].split(list(tokens))[busy[0]].zero_()
    if len(busy) > 2 and case.grad_output != "expanded" and _earlier(case, busy[1]):
        grad_output[last].split(list(tokens))[busy[1]].zero_()
    for weight in weights if len(busy) > 3 else ():
        weight[busy[2]] = 0


def _earlier(case: Case, expert: int) -> bool:
    """Whether an expert has a token before the last microbatch."""
    return any(case.splits(k)[expert] for k in range(case.microbatches - 1))


def spread(
    case: Case,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    x: Sequence[torch.Tensor],
    grad_output: Sequence[torch.Tensor],
) -> None:
    """Make every eighth token and output or input feature larger, so that some of a tensor is subnormal, in place.

    At any scale that is a power of two away a format has the same digits, all but for what is subnormal: of normal data
    in blocks of another shape, or at half the scale, nearly no element. With x times 2^a and weights times 2^b, by
    token and by output feature, and grad_output times 2^-(a + b), all products of each sum are as large as each other.
    Blocks along in_features are told apart at every second expert, where b is 0, x times 2^c and weights times 2^-c, by
    input feature: in a square block both would leave nothing of some.
    DelayedScaling's first scale is 1, at which some of x and weights are subnormal as they are; of grad_output every
    eighth token is made so, each of which has a row of dgrad.
    """
    recipe = recipe_of(case)
    if recipe is None or case.grad_output == "expanded":
        return
    if recipe.delayed:
        grad_output[0][EIGHTH] *= SUBNORMAL
        return
    by, in_blocks = SPREAD[case.dtype], recipe.scale == "power of two"

    def factors(size: int) -> torch.Tensor:
        power = torch.full((size,), 1 / by, dtype=weight.dtype, device=weight.device)
        power[EIGHTH] = by
        return power

    b, c = factors(case.out_features), factors(case.in_features)
    inward = [in_blocks and expert % 2 == 1 for expert in range(case.num_gemms)]
    for expert in range(case.num_gemms):
        weight[expert] *= 1 / c if inward[expert] else b[:, None]
        if bias is not None:
            bias[expert] *= (1 if inward[expert] else b) / by  # as large as the products of most tokens
    for k, splits in enumerate(case.splits(k) for k in range(case.microbatches)):
        a = factors(len(x[k]))[:, None]
        x[k].mul_(a)
        grad_output[k].div_(a * by)
        for own, g, along in zip(x[k].split(splits), grad_output[k].split(splits), inward, strict=True):
            if along:
                own.mul_(c)
            else:
                g.div_(b)


def halve_digits(case: Case, tensors: Iterable[torch.Tensor]) -> None:
    """Round every second column of fp32 data to bf16, in place: else nothing ever lies between two numbers of FP8."""
    if recipe_of(case) is None or case.dtype != "fp32":
        return
    for one in tensors:
        one[..., ::2] = one[..., ::2].bfloat16().float()
