"""What does a recipe leave of an operand? The numbers of FP8, and the scales of each recipe, rounded to in fp64.

Written from Transformer Engine's sources, and apart from every candidate: none is its own judge. Numbers of FP8 are a
grid here, not a dtype of torch's, and a scale that is a power of two comes from an exponent in fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from gradcheck_cli.compute.chain import Linear
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import RecipeName
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.recipe import Recipe, in_fp8, recipe_of


class Float8(NamedTuple):
    """A format of FP8 (Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433, table 1)."""

    precision: int  # bits of a significand, the first one included
    smallest_exponent: int  # of a normal number
    largest: float


E4M3, E5M2 = Float8(4, -6, 448.0), Float8(3, -14, 57344.0)
# Elements that share a scale along the sums of a GEMM; of Float8BlockScaling's weights across them as well
# (x_block_scaling_dim = 1, w_block_scaling_dim = 2 in transformer_engine/common/recipe/__init__.py).
BLOCK: dict[RecipeName, int] = {"Float8BlockScaling": 128, "MXFP8": 32}

# Of whose sums of FP8 numbers right ones were measured against the bound of `judge/bounds.py`, and under which
# recipes: torch's, which run in fp32, on a CPU, and te's on an H200 (`reports/calibration/`).
CALIBRATED: dict[str, tuple[RecipeName, ...]] = {
    "torch": ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8"),
    "te": ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"),
}
NOT_CALIBRATED = "how sums of random data round under this recipe is not calibrated of provider={} yet"
EITHER_FIRST = "two uses of tied weights go backward in either order, and the scale of the second follows the first"

Name = Literal["x", "weight", "grad_output"]
Along = Literal["rows", "columns"]  # of the operand as it is kept: where the sums of the GEMM run

# Where the sums of each product run: fprop is x w^T, dgrad g w, and wgrad g^T x.
SUMMED: dict[Role, dict[Name, Along]] = {
    "fprop": {"x": "rows", "weight": "rows"},
    "dgrad": {"grad_output": "rows", "weight": "columns"},
    "wgrad": {"grad_output": "columns", "x": "columns"},
}


def operands(case: Case, inputs: Inputs, k: int, role: Role) -> Linear:
    """The operands of a layer in microbatch k, those of which a role is a product as the case's recipe leaves them."""
    given = {"x": inputs.x[k], "weight": inputs.weight_of(k), "grad_output": inputs.grad_output[k]}
    return Linear(**(given | {name: _operand(case, inputs, k, name, run) for name, run in _runs(case, role).items()}))


def _runs(case: Case, role: Role) -> dict[Name, Along]:
    """The operands of a product that are quantised, and where its sums run; an override leaves some as given.

    Weights that are kept quantised were never given otherwise: high_precision dequantises the same.
    """
    runs = SUMMED.get(role, {})
    if in_fp8(case, role):
        return runs
    as_in_forward: list[Name] = ["x", "weight"] if case.backward_override == "dequantized" else []
    as_in_forward += ["weight"] if case.quantized_model_init else []
    return {name: "rows" for name in runs if name in as_in_forward}


def _operand(case: Case, inputs: Inputs, k: int, name: Name, along: Along) -> torch.Tensor:
    recipe, parts = recipe_of(case), _parts(case, inputs, k, name)
    assert recipe is not None  # noqa: S101  nobody asks without one
    if recipe.scale == "quotient":
        # DelayedScaling knows the largest of the microbatches before: its scales follow each step at its end, and the
        # first are 1 (transformer_engine/pytorch/quantization.py, reduce_and_update_fp8_tensors).
        # Those weights that stay as they were first quantised have its scale.
        steps = range(0 if name == "weight" and inputs.quantised_once else k)
        seen = [_parts(case, inputs, j, name) for j in steps] if recipe.delayed else [parts]
        scales = quotients(seen, parts, format_of(recipe, name))
        left = [at_scale(part, scale, format_of(recipe, name)) for part, scale in zip(parts, scales, strict=True)]
    else:
        left = [in_blocks(part, recipe, name, along) for part in parts]
    return torch.stack(left) if name == "weight" else torch.cat(left)


def quantised_once(case: Case) -> bool:
    """Whether a weight is quantised once: as it is kept, or for all microbatches from the first on.

    The module keeps what it has made of it where a call says is_first_microbatch (pytorch/module/grouped_linear.py,
    `update_ws`), and no other layer does; after a step of an optimizer each microbatch is a first one.
    """
    cached = case.provider == "te" and case.is_first_microbatch != "unset" and case.optimizer == "none"
    return case.quantized_model_init or cached


def _parts(case: Case, inputs: Inputs, k: int, name: Name) -> Sequence[torch.Tensor]:
    """The matrices that are quantised each by itself: an expert's rows, or its weight."""
    if name == "weight":
        return inputs.weight_of(k).unbind()
    whole = inputs.x[k] if name == "x" else inputs.grad_output[k]
    return torch.split(whole, list(case.splits(k)))


def format_of(recipe: Recipe, name: Name) -> Float8:
    """Format.HYBRID where a scale is a tensor's, E5M2 for gradients; with blocks E4M3 for all (ibid., fp8_format)."""
    return E5M2 if name == "grad_output" and recipe.scale == "quotient" else E4M3


def quotients(seen: Sequence[Sequence[torch.Tensor]], now: Sequence[torch.Tensor], to: Float8) -> torch.Tensor:
    """The scale of each part, fp32: the format's largest number by the largest magnitude seen, 1 where that is 0.

    Divided in fp32, rounded to the nearest, as `__fdiv_rn` does (transformer_engine/common/recipe/recipe_common.cuh).
    """
    none = now[0].new_zeros(len(now), dtype=torch.float64)
    largest = torch.stack([none, *(torch.stack([_largest(part) for part in some]) for some in seen)]).amax(0)
    return torch.where(largest > 0, _ratio(to, largest), 1.0).float()


def _largest(part: torch.Tensor) -> torch.Tensor:
    return part.abs().max().double() if part.numel() else part.new_zeros((), dtype=torch.float64)


def _ratio(to: Float8, amax: torch.Tensor) -> torch.Tensor:
    """One division: `number / tensor` would be torch's reciprocal and a product, which round twice."""
    return torch.full_like(amax, to.largest) / amax


def in_blocks(values: torch.Tensor, recipe: Recipe, name: Name, along: Along) -> torch.Tensor:
    """A matrix (R, C) with one power of two as the scale of each block, the largest that lets none saturate.

    Float8BlockScaling cuts the bits off the quotient (recipe_common.cuh, force_pow_2_scales), MXFP8 rounds the exponent
    of amax / 448 up (common/util/ptx.cuh, float_to_e8m0): of every amax the same power of two.
    """
    size, (rows, columns), to = BLOCK[recipe.name], values.shape, format_of(recipe, name)
    square = name == "weight" and recipe.name == "Float8BlockScaling"
    tall, wide = (size if square or along == run else 1 for run in ("columns", "rows"))
    whole = torch.nn.functional.pad(values, (0, -columns % wide, 0, -rows % tall))
    blocks = whole.view(whole.shape[0] // tall, tall, whole.shape[1] // wide, wide)
    scale = power_of_two(blocks.abs().amax((1, 3), keepdim=True), to)
    return at_scale(blocks, scale, to).view(whole.shape)[:rows, :columns]


def power_of_two(amax: torch.Tensor, to: Float8) -> torch.Tensor:
    """The largest power of two that times amax is within the format, fp32; 1 where amax is 0."""
    _, exponent = torch.frexp(_ratio(to, amax.double()))
    return torch.where(amax > 0, two_to(exponent - 1), 1.0).float()


def at_scale(values: torch.Tensor, scale: torch.Tensor, to: Float8) -> torch.Tensor:
    """What is left of values at a scale, fp64: they are multiplied by it in fp32, and its inverse is kept in fp32."""
    inverse = torch.ones_like(scale) / scale
    return nearest((values.float() * scale).double(), to) * inverse.double()


def nearest(values: torch.Tensor, to: Float8) -> torch.Tensor:
    """The nearest numbers of a format, fp64, of two as near the even one; what is too large becomes the largest."""
    _, exponent = torch.frexp(values)
    spacing = two_to((exponent - 1).clamp(min=to.smallest_exponent) - (to.precision - 1))
    return ((values / spacing).round_() * spacing).clamp_(-to.largest, to.largest)


def two_to(exponent: torch.Tensor) -> torch.Tensor:
    """A power of two by its bits, fp64: torch.ldexp takes torch's default dtype, which a candidate may have changed."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def not_judged(case: Case) -> str:
    """Why a recipe's random data has no bound; "" where it has one."""
    recipe = recipe_of(case)
    if recipe and recipe.name not in CALIBRATED.get(case.provider, ()):
        return NOT_CALIBRATED.format(case.provider)
    if recipe and recipe.delayed and case.tied_weights:
        return EITHER_FIRST
    return ""
