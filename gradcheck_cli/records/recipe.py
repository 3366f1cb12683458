"""How is a layer quantised? What each recipe of Transformer Engine does to a tensor, and what of it loses nothing."""

from __future__ import annotations

from typing import Literal, get_args

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import RecipeName
from gradcheck_cli.records.observation import Role

# Integers of these magnitudes have few enough significand bits for E4M3 (4), E5M2 (3) and, the first three, E2M1 (2).
POWERS = (1, 2, 4)
# With this as the largest magnitude of a tensor, 448 / 7 = 2^6 and 57344 / 7 = 2^13: the quotient of the format's
# largest number and the tensor's, which Float8CurrentScaling and DelayedScaling scale by, is a power of two.
AMAX = 7
# Four bits, which E4M3 has and E5M2 has not; of a tensor whose largest magnitude is twice the seven.
ALL_DIGITS = 11
# Hopper's FP8 tensor cores keep some 14 bits of what they sum: below this every partial sum is an exact integer
# (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, sec. 3.5.2, measures 14 bits).
ACCUMULATED_EXACTLY = 2.0**13


class Recipe(Record, frozen=True, kw_only=True):
    """What is known of a recipe (transformer_engine/common/recipe/__init__.py)."""

    name: RecipeName
    class_name: str  # of Transformer Engine's recipe
    scale: Literal["quotient", "power of two", "two levels"]  # of what a scale is made
    said: str  # in words
    rows: int  # what the tokens of each expert must be a multiple of
    # Scales come from the amax of earlier steps, and the first is 1: data must not lie far from 1.
    delayed: bool = False


RECIPES: dict[RecipeName, Recipe] = {
    one.name: one
    for one in (
        Recipe(
            name="DelayedScaling",
            class_name="DelayedScaling",
            scale="quotient",
            rows=16,
            delayed=True,
            said="E4M3, gradients E5M2; one scale for each tensor of each expert, from its largest element so far",
        ),
        Recipe(
            name="Float8CurrentScaling",
            class_name="Float8CurrentScaling",
            scale="quotient",
            rows=16,
            said="E4M3, gradients E5M2; one scale for each tensor of each expert, from its largest element",
        ),
        Recipe(
            name="Float8BlockScaling",
            class_name="Float8BlockScaling",
            scale="power of two",
            rows=16,
            said="E4M3; a power of two for each 128 elements along the sum, of weights for each 128 x 128",
        ),
        Recipe(
            name="MXFP8",
            class_name="MXFP8BlockScaling",
            scale="power of two",
            rows=32,
            said="E4M3; a power of two for each 32 elements along the sum",
        ),
        Recipe(
            name="NVFP4",
            class_name="NVFP4BlockScaling",
            scale="two levels",
            rows=16,
            said="E2M1; a scale for each 16 elements; rotated, and gradients rounded at random",
        ),
    )
}
assert {"none", *RECIPES} == set(get_args(RecipeName))  # noqa: S101


def recipe_of(case: Case) -> Recipe | None:
    """The recipe of a case; None where nothing is quantised."""
    return RECIPES.get(case.recipe)


def in_fp8(case: Case, role: Role) -> bool:
    """Whether a recipe quantises both operands of a product: an override leaves the backward's in the case's dtype."""
    return recipe_of(case) is not None and (role == "fprop" or case.backward_override == "none")


OVERRIDDEN = {
    "high_precision": "the backward multiplies all as it was given, unquantised",
    "dequantized": "the backward multiplies grad_output as it was given, and x and w as the forward quantised them",
}
KEPT = "quantized_model_init=1: w_i are kept quantised, once as they are loaded{}; their gradients are not quantised"


def quantised_in_words(case: Case) -> list[str]:
    """What a recipe does to the operands of each GEMM, for `gradcheck show`; nothing where there is none."""
    recipe = recipe_of(case)
    if recipe is None:
        return []
    quantised = f"recipe={recipe.name}: x_i, w_i and grad_output_i are quantised for each GEMM ({recipe.said})"
    override, kept = OVERRIDDEN.get(case.backward_override), case.quantized_model_init
    if override and kept and case.backward_override == "high_precision":
        override += ", and w as it is kept"
    return [
        quantised,
        *([f"backward_override={case.backward_override}: {override}"] if override else []),
        *([KEPT.format(", at scale 1" if recipe.delayed else "")] if kept else []),
    ]
