"""Which combinations with a recipe mean nothing on any machine, and why?"""

from __future__ import annotations

from gradcheck_cli.matrices.constraint import Constraint

RECIPES = (
    Constraint(
        name="recipe-needs-a-quantiser",
        why="of what is built in, te and torch:api=loop know recipes; ask for recipe=none",
        rejects=lambda case: case.recipe != "none" and case.provider in ("torch", "faults") and case.api != "loop",
        about=(("recipe",),),
    ),
    Constraint(
        name="override-needs-a-recipe",
        why="backward_override says what the backward of a quantised layer multiplies, and DelayedScaling has none; "
        "ask for another recipe, or backward_override=none",
        rejects=lambda case: case.backward_override != "none" and case.recipe in ("none", "DelayedScaling"),
        about=(("backward_override", "recipe"),),
    ),
    Constraint(
        name="quantised-weights-need-a-recipe",
        why="quantized_model_init keeps weights as a recipe quantises them, and there is none; ask for one",
        rejects=lambda case: case.quantized_model_init and case.recipe == "none",
        about=(("quantized_model_init", "recipe"),),
    ),
    Constraint(
        name="torch-keeps-no-quantised-weights",
        why="of what is built in, te alone has parameters that are kept quantised; ask for quantized_model_init=0",
        rejects=lambda case: case.quantized_model_init and case.provider in ("torch", "faults"),
        about=(("quantized_model_init",),),
    ),
    Constraint(
        name="nvfp4-loses-something",
        why="NVFP4 rotates its operands and rounds at random: no data passes through it unchanged, and a bound of what "
        "it leaves is not worked out yet; ask for recipe=MXFP8",
        rejects=lambda case: case.recipe == "NVFP4",
        about=(("recipe",),),
    ),
    Constraint(
        name="uniform-grad-output-has-a-scale",
        why="the largest of ones makes no power of two of a scale that is a quotient, so that quantisation rounds, and "
        "random data under it is calibrated of torch alone so far, and not of DelayedScaling with tied weights; "
        "ask for grad_output=random, or another recipe",
        rejects=lambda case: (
            case.grad_output == "expanded"
            and case.recipe in ("DelayedScaling", "Float8CurrentScaling")
            and (case.provider != "torch" or (case.tied_weights and case.recipe == "DelayedScaling"))
        ),
        about=(("recipe", "grad_output", "tied_weights"),),
    ),
)
