"""What is right of a chain, y = (s silu(a) b) w2^T with [a, b] = x w1^T, and how far may its own roundings lead off?

Derived in `judge/bounds.py`, under "carried". All tensors are fp64; one row for each token, expert after expert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec
import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.products import Exact, joined, product, summed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FP32
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import WEIGHTS
from gradcheck_cli.records.rounding import Rounding

# Between a tensor in fp32 and silu or its derivative of it: |error| <= this + this times |a|, in units of fp32's
# roundoff. CUDA's __expf errs by 2 + 1.173 |a| units in the last place, of two roundoffs each, at most (CUDA C++
# Programming Guide, "Mathematical Functions", Intrinsic Functions); what follows it rounds a few times more.
EVALUATED = 8.0
# Microbatches whose tensors are kept: each role asks for all of them again, and each expert of a wrong one.
KEPT = 8
# And, times 1 + |a|: below fp32's smallest normal number sigma(a) may be flushed to zero, or be 1 over an overflow.
FLUSHED = 2.0**FP32.smallest_exponent
# The largest second derivative of silu, at 0; far from there |sigma' (2 + a (1 - 2 sigma))| <= (2 + |a|) exp(-|a|).
BENT = 0.5


class Linear(NamedTuple):
    """The operands of one layer: x (T, n), weight (G, m, n) and grad_output (T, m)."""

    x: torch.Tensor
    weight: torch.Tensor
    grad_output: torch.Tensor


class Between(NamedTuple):
    """What lies between the layers for each token: gates a and units b of fc1, s, and of fc2 its input z and dgrad gz.

    `h` and `dh` (T, 2 N) are a and b, and their gradients, beside each other; s is (T, 1), all others (T, N).
    """

    a: torch.Tensor
    b: torch.Tensor
    s: torch.Tensor
    act: torch.Tensor  # silu(a) b
    z: torch.Tensor
    gz: torch.Tensor
    dh: torch.Tensor
    h: Exact
    gz_sum: Exact


def silu(a: torch.Tensor) -> torch.Tensor:
    """a sigma(a)."""
    return a * torch.sigmoid(a)


def dsilu(a: torch.Tensor) -> torch.Tensor:
    """Its derivative."""
    sigma = torch.sigmoid(a)
    return sigma * (1 + a * (1 - sigma))


def bent(a: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    """A bound of its second derivative in absolute value, wherever in a +- off."""
    least = (a.abs() - off).clamp(min=0)
    return ((2 + least) * torch.exp(-least)).clamp(max=BENT)


def half_spacing(value: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """The error of rounding to nearest there at most: u times the power of two that |value| is not less than."""
    _, exponent = torch.frexp(value)
    power = torch.ldexp(torch.ones_like(value), exponent - 1)
    return rounding.store * torch.where(value == 0, value, power).abs() + rounding.floor


@lru_cache(maxsize=KEPT)
def between(case: Case, inputs: Inputs, k: int) -> Between:
    """Everything between the layers in microbatch k. Transformer Engine gates with the first half of fc1's output."""
    assert inputs.weight_fc2 is not None  # noqa: S101  a chain's inputs have it
    h = _by_expert(case, k, inputs.x[k].double(), inputs.weight.double().mT)
    gz = _by_expert(case, k, inputs.grad_output[k].double(), inputs.weight_fc2.double())
    a, b = h.value.chunk(2, dim=1)
    s, act = inputs.probs[k].double()[:, None], silu(a) * b
    dh = torch.cat([gz.value * s * b * dsilu(a), gz.value * s * silu(a)], dim=1)
    return Between(a, b, s, act, s * act, gz.value, dh, h, gz)


def _by_expert(case: Case, k: int, rows: torch.Tensor, matrices: torch.Tensor) -> Exact:
    parts = zip(rows.split(list(case.splits(k))), matrices, strict=True)
    return joined(torch.cat, [product(own, matrix) for own, matrix in parts])


def linear(case: Case, inputs: Inputs, k: int, role: Role) -> Linear:
    """The layer of the chain that a role is a product of, as given; pgrad is one of neither, and is given fc2."""
    assert inputs.weight_fc2 is not None  # noqa: S101  a chain's inputs have it
    own = between(case, inputs, k)
    if role in ("dgrad", "wgrad"):
        return Linear(inputs.x[k], inputs.weight, own.dh)
    return Linear(own.z, inputs.weight_fc2, inputs.grad_output[k])


def in_fp64(given: Linear) -> Linear:
    """The same operands in fp64."""
    return Linear(*(tensor.double() for tensor in given))


def microbatch(case: Case, inputs: Inputs, k: int) -> dict[Role, Exact]:
    """All roles of microbatch k."""
    own, splits = between(case, inputs, k), list(case.splits(k))
    fc1, fc2 = (in_fp64(linear(case, inputs, k, role)) for role in WEIGHTS)

    def wgrad(of: Linear) -> Exact:
        pairs = zip(of.grad_output.split(splits), of.x.split(splits), strict=True)
        return joined(torch.stack, [product(g_i.T, x_i) for g_i, x_i in pairs])

    return {
        "fprop": _by_expert(case, k, fc2.x, fc2.weight.mT),
        "dgrad": _by_expert(case, k, fc1.grad_output, fc1.weight),
        "wgrad": wgrad(fc1),
        "wgrad_fc2": wgrad(fc2),
        "pgrad": summed(own.gz * own.act),
    }


class Near(NamedTuple):
    """A tensor, and its deviation: times lambda it bounds what roundings before it have moved an element by."""

    value: torch.Tensor
    deviation: torch.Tensor


class Deviations(NamedTuple):
    """The deviations of what lies between the layers, in a candidate that rounds like this."""

    z: torch.Tensor
    dh: torch.Tensor
    dh_without_gz: torch.Tensor  # of dh, all but what an error of gz makes of it
    dh_by_gz: torch.Tensor  # dh / gz
    gz: torch.Tensor
    pgrad: torch.Tensor  # of each term of its sum


@lru_cache(maxsize=4 * KEPT)
def carried(case: Case, inputs: Inputs, k: int, role: Role, rounding: Rounding) -> torch.Tensor:
    """The deviation of a role of microbatch k that its operands' own roundings lead to, of the role's shape."""
    seen = deviations(case, inputs, k, msgspec.structs.replace(rounding, buffer=0.0, rounds_before_adding=False))
    fc1, fc2 = (in_fp64(linear(case, inputs, k, of)) for of in WEIGHTS)
    splits = list(case.splits(k))

    def over_tokens(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.stack([p.T @ q for p, q in zip(left.split(splits), right.split(splits), strict=True)])

    if role == "pgrad":
        return seen.pgrad.square().sum(1, keepdim=True).sqrt()
    if role == "wgrad_fc2":
        return over_tokens(fc2.grad_output.square(), seen.z.square()).sqrt()
    if role == "wgrad" and case.grad_output == "expanded":
        # Each token of an expert has the same gz, and so the same error of it.
        same = [rows.amax(0) if len(rows) else rows.sum(0) for rows in seen.gz.split(splits)]
        shared = torch.stack([each.repeat(2)[:, None] for each in same]) * over_tokens(seen.dh_by_gz, fc1.x).abs()
        return shared + over_tokens(seen.dh_without_gz.square(), fc1.x.square()).sqrt()
    if role == "wgrad":
        return over_tokens(seen.dh.square(), fc1.x.square()).sqrt()
    rows, weight = (seen.z, fc2.weight.mT) if role == "fprop" else (seen.dh, fc1.weight)
    parts = zip(rows.square().split(splits), weight.square(), strict=True)
    return torch.cat([own @ matrix for own, matrix in parts]).sqrt()


@lru_cache(maxsize=KEPT)
def deviations(case: Case, inputs: Inputs, k: int, rounding: Rounding) -> Deviations:
    """How far each tensor between the layers may be off, rounded as often as any of the paths on trial rounds it.

    Transformer Engine stores h, silu(a) b and z, and on the way back gz, s gz and dh; since 2.20 it stores less. Plain
    torch stores each product of two tensors.
    """
    own = between(case, inputs, k)
    lambda_, a = rounding.lambda_, own.a

    def stored(near: Near, times: int) -> Near:
        rounded = half_spacing(near.value.abs() + lambda_ * near.deviation, rounding)
        return near._replace(deviation=(near.deviation.square() + times * rounded.square()).sqrt())

    def gemm(exact: Exact) -> Near:
        free = rounding.accumulate * case.in_features**0.5 * exact.scale
        return stored(Near(exact.value, free.hypot(rounding.operands / lambda_ * exact.energy)), 1)

    h, gz = gemm(own.h), gemm(own.gz_sum)
    off_a, off_b = h.deviation.chunk(2, dim=1)
    units, flushed = rounding.accumulate * EVALUATED * (1 + a.abs()), FLUSHED * (1 + a.abs())
    curve = bent(a, lambda_ * off_a)
    bend = curve / 2 * lambda_ * off_a.square()
    gate = Near(silu(a), dsilu(a).abs() * off_a + bend + units * silu(a).abs() + flushed)
    slope = Near(dsilu(a), curve * off_a + units * torch.sigmoid(a) * (1 + a.abs()) + flushed)
    unit = Near(own.b, off_b)
    scale = Near(own.s, torch.zeros_like(own.s))

    def back(gz: Near) -> torch.Tensor:
        to_a, to_b = (multiplied([gz, scale, unit, slope], lambda_), multiplied([gz, scale, gate], lambda_))
        return torch.cat([stored(to_a, 3).deviation, stored(to_b, 3).deviation], dim=1)

    act = stored(multiplied([gate, unit], lambda_), 2)
    still = Near(gz.value.abs() + lambda_ * gz.deviation, torch.zeros_like(gz.deviation))
    return Deviations(
        z=stored(multiplied([gate, unit, scale], lambda_), 3).deviation,
        dh=back(gz),
        dh_without_gz=back(still),
        dh_by_gz=torch.cat([own.s * own.b * dsilu(a), own.s * silu(a)], dim=1),
        gz=gz.deviation,
        pgrad=stored(multiplied([gz, act], lambda_), 1).deviation,
    )


def multiplied(factors: list[Near], lambda_: float) -> Near:
    """A product of tensors that are each off by something: to the first order as independent errors add up.

    The rest is what no order leaves out, |prod (v + e) - prod v| <= prod (|v| + |e|) - prod |v|, with e at lambda.
    """
    value, whole, plain = (_product(factors, take) for take in (_value, _reach(lambda_), _size))
    alone = [near.deviation * _product([other for other in factors if other is not near], _size) for near in factors]
    first = torch.stack(torch.broadcast_tensors(*alone))
    rest = (whole - plain) / lambda_ - first.sum(0)
    return Near(value, first.square().sum(0).sqrt() + rest.clamp(min=0))


def _product(factors: list[Near], take: Callable[[Near], torch.Tensor]) -> torch.Tensor:
    whole = torch.ones((), dtype=torch.float64, device=factors[0].value.device)
    for near in factors:
        whole = whole * take(near)
    return whole


def _value(near: Near) -> torch.Tensor:
    return near.value


def _size(near: Near) -> torch.Tensor:
    return near.value.abs()


def _reach(lambda_: float) -> Callable[[Near], torch.Tensor]:
    return lambda near: near.value.abs() + lambda_ * near.deviation
