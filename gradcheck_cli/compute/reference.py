"""What is right? fprop, dgrad, wgrad and bgrad of a case in fp64, with the scales that bound any rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from gradcheck_cli.compute import chain
from gradcheck_cli.compute.chain import Linear
from gradcheck_cli.compute.inputs import Inputs, draw, exponents_of
from gradcheck_cli.compute.integers import ACCUMULATED_EXACTLY
from gradcheck_cli.compute.products import Exact, joined, product
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.quantised import not_judged, operands, quantised_once
from gradcheck_cli.compute.scales import finest
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS, FP32
from gradcheck_cli.records.observation import Fill, Role
from gradcheck_cli.records.recipe import ACCUMULATED_EXACTLY as IN_FP8
from gradcheck_cli.records.recipe import AMAX, recipe_of
from gradcheck_cli.records.roles import BY_TOKEN, CHAIN, is_chain, weights_of

# The axes on which the data and what is right depend; all others say who computes it, and where it is kept.
DATA_AXES = (
    "dtype", "recipe", "backward_override", "quantized_model_init", "main_grad_dtype", "bias", "m_splits", "num_gemms",
    "tokens_per_expert", "in_features", "out_features", "microbatches", "retain_graph", "grad_output", "seed",
)  # fmt: skip
STEP_AXES = ("optimizer", "tied_weights", "frozen_weights", "frozen_bias")  # and these where an optimizer steps
THINNINGS = 6
NO_INTEGERS = "silu makes no integers of integers, so that a chain has no result without roundings"
PRODUCTS: tuple[Role, ...] = ("fprop", "dgrad", "wgrad")
LARGEST_KEPT = 32 << 20  # bytes; 24 of these are kept for the cases that follow, larger ones are computed anew


@dataclass(frozen=True)
class Reference:
    """The right answer to one case and fill.

    `roles[k]` holds microbatch k's fprop (T, N), dgrad (T, K), wgrad (G, N, K) and, with a bias, bgrad (G, N).
    On an integer fill they are integers times 2^exponents[role]; `largest_scale` bounds every partial result in any
    order of summation, in these units, and `limit` is what the fill allows it to be.
    `inapplicable` says why the fill's argument does not hold for the data drawn, "" where it does; `unrounded` are the
    roles of which on range data no value needs a rounding.
    """

    fill: Fill
    inputs: Inputs
    roles: tuple[dict[Role, Exact], ...]
    exponents: dict[str, int]
    largest_scale: float
    limit: float
    inapplicable: str
    unrounded: tuple[Role, ...] = ()


def prepare(case: Case, fill: Fill, device: torch.device) -> Reference:
    """Inputs and reference of a case; shared by all cases that differ only in who computes and where it is kept."""
    axes = {name: getattr(case, name) for name in DATA_AXES + STEP_AXES * (case.optimizer != "none")}
    axes["grad_output"] = case.grad_output if case.grad_output == "expanded" else "random"
    if fill == "normal" and (why := not_judged(case)):
        return Reference(fill, draw(case, fill, device), (), {}, 0.0, 0.0, why)
    shared = Case(provider="reference", api=CHAIN if is_chain(case) else "fp64", **axes)
    # Of data that is the same, whose weights have the scale of their first microbatch depends on who computes.
    return (_kept if tensor_bytes(shared) <= LARGEST_KEPT else _prepare)(shared, fill, device, quantised_once(case))


def tensor_bytes(case: Case) -> int:
    """Roughly what a reference holds: value, scale and energy of every role and microbatch, in fp64."""
    features = case.in_features + case.out_features
    features *= 3 if is_chain(case) else 1
    weights = case.num_gemms * case.in_features * case.out_features * (3 if is_chain(case) else 1)
    return sum(8 * 3 * (weights + sum(case.splits(k)) * features) for k in range(case.microbatches))


def _prepare(case: Case, fill: Fill, device: torch.device, once: bool) -> Reference:  # noqa: FBT001
    if is_chain(case) and fill != "normal":
        return Reference(fill, draw(case, "normal", device), (), {}, 0.0, 0.0, NO_INTEGERS)
    reference = compute(case, replace(draw(case, fill, device), quantised_once=once), fill)
    for thinning in range(1, THINNINGS if fill != "normal" else 0):
        if not reference.inapplicable or (fill == "range" and reference.largest_scale <= reference.limit):
            break
        reference = compute(case, replace(draw(case, fill, device, thinning), quantised_once=once), fill)
    return reference


_kept = lru_cache(maxsize=24)(_prepare)


def compute(case: Case, inputs: Inputs, fill: Fill) -> Reference:
    """The fp64 reference of given inputs, and whether the fill's argument holds on them."""
    if is_chain(case):
        return _of_a_chain(case, inputs, fill)
    roles = tuple(microbatch(case, inputs, k, fill) for k in range(case.microbatches))
    exponents = exponents_of(case, fill)

    def in_own(role: Role, scale: torch.Tensor, k: int = 0) -> torch.Tensor:
        units = in_units(scale, exponents[role])
        return units if fill == "normal" else finest(case, role, units, k)

    stored = [in_own(name, seen[name].scale, k) for k, seen in enumerate(roles) for name in BY_TOKEN if name in seen]
    wgrad = in_units(torch.stack([seen["wgrad"].scale for seen in roles]).sum(0), exponents["wgrad"])
    summed = [wgrad]
    if inputs.bias is not None:
        bgrad = torch.stack([seen["bgrad"].scale for seen in roles]).sum(0)
        summed.append(in_own("bgrad", bgrad))
    largest = max((float(scale.max()) for scale in stored + summed if scale.numel()), default=0.0)
    in_main_grad = float((wgrad + in_units(inputs.prefill.double().abs(), exponents["prefill"])).max())
    even = unrounded(case, roles, exponents) if fill == "range" else ()
    limit, why = _argument(case, fill, even, largest, in_main_grad)
    why = (_lossy(case, inputs) if fill != "normal" else "") or why
    return Reference(fill, inputs, roles, exponents, largest, limit, why, even)


def _of_a_chain(case: Case, inputs: Inputs, fill: Fill) -> Reference:
    roles = tuple(chain.microbatch(case, inputs, k) for k in range(case.microbatches))
    stored = [seen[name].scale for seen in roles for name in BY_TOKEN]
    summed = [torch.stack([seen[name].scale for seen in roles]).sum(0) for name in weights_of(case)]
    largest = max(float(scale.max()) for scale in stored + summed if scale.numel())
    limit, why = _argument(case, fill, (), largest, 0.0)
    return Reference(fill, inputs, roles, {}, largest, limit, why)


def in_units(value: torch.Tensor, exponent: int) -> torch.Tensor:
    """Divided by 2^exponent, exactly: the integers that an integer fill is made of."""
    return value * 2.0**-exponent


def _lossy(case: Case, inputs: Inputs) -> str:
    """Why quantisation loses something of this data; "" where it does not: a scale is no power of two.

    Of a tensor of zeros it is 1.
    """
    recipe = recipe_of(case)
    if recipe is None or recipe.scale != "quotient":
        return ""
    tensors = {"weight": [one for weight in inputs.weights or (inputs.weight,) for one in weight]}
    for name, given in (("x", inputs.x), ("grad_output", inputs.grad_output)):
        tensors[name] = [rows for k, one in enumerate(given) for rows in one.split(list(case.splits(k))) if len(rows)]
    for name, whole in tensors.items():
        for largest in torch.stack([one.abs().max() for one in whole]).tolist() if whole else ():
            if largest and math.frexp(largest)[0] != math.frexp(AMAX)[0]:
                return f"{name} has a largest element of {largest:.4g}: its scale in {recipe.name} is no power of two"
    return ""


def _argument(case: Case, fill: Fill, even: tuple[Role, ...], largest: float, in_main_grad: float) -> tuple[float, str]:
    """What the fill allows sums of |a||b| to be, and why its argument does not hold on this data; "" if it does."""
    stored = FORMATS[case.dtype]
    exact, said = stored.largest_exact_integer, f"sums of |a||b| reach {largest:.4g}"
    if recipe_of(case) and fill != "normal" and largest > IN_FP8:
        return IN_FP8, f"{said}, and FP8 tensor cores keep integers up to {IN_FP8:.0f} exactly"
    if fill == "normal":
        limit = stored.largest
        return limit, "" if largest <= limit else f"{said}, and the largest {case.dtype} is {limit:.3g}"
    if fill == "exact":
        holds = largest <= exact and in_main_grad <= FORMATS[case.main_grad_dtype].largest_exact_integer
        if largest > exact:
            return float(exact), f"{said}, and {case.dtype} holds integers up to {exact} exactly"
        return float(exact), "" if holds else f"main_grad reaches {in_main_grad:.4g}, more than it holds exactly"
    whole = stored.precision >= FP32.precision  # then everything that is accumulated is held as well
    limit = float(exact) if whole else min(ACCUMULATED_EXACTLY, stored.largest)
    if max(largest, in_main_grad) > limit:
        return limit, f"{said}; expected {limit:.7g} at most"
    crossed = whole or len(even) < len(PRODUCTS)
    return limit, "" if crossed else f"no result is past {exact}, up to which {case.dtype} holds integers exactly"


def unrounded(case: Case, roles: tuple[dict[Role, Exact], ...], exponents: dict[str, int]) -> tuple[Role, ...]:
    """The products of which every value is one that the dtype holds; in fp32, one that fp16 or TF32 would hold."""
    narrow = DTYPES["fp16" if case.dtype == "fp32" else case.dtype]

    def held(value: torch.Tensor) -> bool:
        return torch.equal(value.to(narrow).double(), value)

    return tuple(name for name in PRODUCTS if all(held(in_units(seen[name].value, exponents[name])) for seen in roles))


def microbatch(case: Case, inputs: Inputs, k: int, fill: Fill) -> dict[Role, Exact]:
    """All roles of microbatch k: y_i = x_i w_i^T + b_i, dx_i = g_i w_i, dw_i = g_i^T x_i, db_i = sum of g_i's rows.

    The derivative of a linear map, written out per expert i. Of a recipe each product is one of quantised operands, and
    the bias and its gradient are as without one; quantisation loses nothing of integers.
    """

    def of(role: Role) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        whole = linear(case, inputs, k, role) if fill == "normal" else as_given(inputs, k)
        splits = list(case.splits(k))
        x, g = whole.x.double().split(splits), whole.grad_output.double().split(splits)
        return list(zip(x, g, whole.weight.double(), strict=True))

    fprop = joined(torch.cat, [product(x_i, w_i.T) for x_i, _, w_i in of("fprop")])
    roles: dict[Role, Exact] = {
        "dgrad": joined(torch.cat, [product(g_i, w_i) for _, g_i, w_i in of("dgrad")]),
        "wgrad": joined(torch.stack, [product(g_i.T, x_i) for x_i, g_i, _ in of("wgrad")]),
    }
    if (bias := inputs.bias_of(k)) is not None:
        rows = bias.double().repeat_interleave(torch.tensor(case.splits(k), device=bias.device), dim=0)
        fprop = Exact(fprop.value + rows, fprop.scale + rows.abs(), fprop.energy)
        roles["bgrad"] = joined(
            torch.stack, [Exact(g_i.sum(0), g_i.abs().sum(0), g_i.square().sum(0).sqrt()) for _, g_i, _ in of("bgrad")]
        )
    return {"fprop": fprop, **roles}


def linear(case: Case, inputs: Inputs, k: int, role: Role) -> Linear:
    """The operands of the layer that a role is a product of, as a recipe quantises them for it."""
    if is_chain(case):
        return chain.linear(case, inputs, k, role)
    if recipe_of(case):
        return operands(case, inputs, k, role)
    return as_given(inputs, k)


def as_given(inputs: Inputs, k: int) -> Linear:
    """The operands of a single layer."""
    return Linear(inputs.x[k], inputs.weight_of(k), inputs.grad_output[k])
