"""How is a layer quantised? What each recipe of Transformer Engine does to a tensor, and what of it loses nothing."""

from __future__ import annotations

from typing import Literal, get_args

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import RecipeName

# Integers of these magnitudes have few enough significand bits for E4M3 (4), E5M2 (3) and, the first three, E2M1 (2).
POWERS = (1, 2, 4)
# With this as the largest magnitude of a tensor, 448 / 7 = 2^6 and 57344 / 7 = 2^13: the quotient of the format's
# largest number and the tensor's, which Float8CurrentScaling and DelayedScaling scale by, is a power of two.
AMAX = 7
# Hopper's FP8 tensor cores keep some 14 bits of what they sum: below this every partial sum is an exact integer
# (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, sec. 3.5.2, measures 14 bits).
ACCUMULATED_EXACTLY = 2.0**13


class Recipe(Record, frozen=True, kw_only=True):
    """What is known of a recipe (transformer_engine/common/recipe/__init__.py)."""

    name: RecipeName
    class_name: str  # of Transformer Engine's recipe
    scale: Literal["quotient", "power of two", "two levels"]  # of what a scale is made
    rows: int  # what the tokens of each expert must be a multiple of
    # Scales come from the amax of earlier steps, and the first is 1: data must not lie far from 1.
    delayed: bool = False


RECIPES: dict[RecipeName, Recipe] = {
    one.name: one
    for one in (
        Recipe(name="DelayedScaling", class_name="DelayedScaling", scale="quotient", rows=16, delayed=True),
        Recipe(name="Float8CurrentScaling", class_name="Float8CurrentScaling", scale="quotient", rows=16),
        Recipe(name="Float8BlockScaling", class_name="Float8BlockScaling", scale="power of two", rows=16),
        Recipe(name="MXFP8", class_name="MXFP8BlockScaling", scale="power of two", rows=32),
        Recipe(name="NVFP4", class_name="NVFP4BlockScaling", scale="two levels", rows=16),
    )
}
assert {"none", *RECIPES} == set(get_args(RecipeName))  # noqa: S101


def recipe_of(case: Case) -> Recipe | None:
    """The recipe of a case; None where nothing is quantised."""
    return RECIPES.get(case.recipe)
