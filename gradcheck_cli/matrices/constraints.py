"""Which combinations mean nothing on any machine, and why? What one machine cannot do is REFUSED there instead."""

from __future__ import annotations

from gradcheck_cli.matrices.calling_constraints import CALLING
from gradcheck_cli.matrices.constraint import Constraint
from gradcheck_cli.matrices.recipe_constraints import RECIPES
from gradcheck_cli.matrices.step_constraints import STEPS
from gradcheck_cli.records import splits
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import overwriting_at_all
from gradcheck_cli.records.roles import CHAIN, is_chain


def _is_balanced_by_size(case: Case) -> bool:
    return case.m_splits != "balanced" and case.splits() == (case.tokens_per_expert,) * case.num_gemms


def _only_frozen(case: Case) -> bool:
    nothing_to_learn = case.frozen_weights == "all" or (case.num_gemms == 1 and case.frozen_weights != "none")
    return nothing_to_learn and case.frozen_input and (case.frozen_bias or not case.bias)


# What is said of a main_grad that no wgrad is to reach.
_FUSED_ALONE = {
    "main_grad_dtype": "fp32",
    "grad_added_to_main_grad": "attached",
    "overwrite_main_grad": "none",
    "zero_out_wgrad": False,
    "is_first_microbatch": "unset",
}

_TE_OPS = (("te", "op"), ("te", CHAIN))
_DEFAULTS = Case(provider="p", api="a")


def _of_one_layer(name: str, axes: tuple[str, ...], why: str) -> Constraint:
    """What a chain is not tried with."""
    return Constraint(
        name=name,
        why=f"{why}; of api={CHAIN} leave out {' and '.join(axes)}",
        rejects=lambda case: is_chain(case) and any(getattr(case, axis) != getattr(_DEFAULTS, axis) for axis in axes),
        about=tuple((axis,) for axis in axes),
    )


_CHAIN = (
    _of_one_layer(
        "chain-has-no-bias",
        ("bias", "return_bias", "single_grouped_bias", "frozen_bias"),
        "the layers of a chain are tried without bias, as the experts of most models are",
    ),
    _of_one_layer(
        "chain-learns-everything",
        ("frozen_weights", "frozen_input"),
        "what a chain owes where a part of it is frozen is not worked out yet",
    ),
    _of_one_layer(
        "chain-has-no-backward-dw",
        ("delay_wgrad_compute",),
        "each layer of a chain has a backward_dw() of its own, and their order is not worked out yet",
    ),
    _of_one_layer(
        "chain-has-no-tail",
        ("padded_tail",),
        "the probabilities of a chain would need a tail as well, and have none yet",
    ),
    _of_one_layer(
        "chain-input-is-contiguous",
        ("input_layout",),
        "how x lies is tried with te:api=op, whose forward a chain calls",
    ),
    _of_one_layer(
        "chain-has-no-recipe",
        ("recipe", "backward_override", "quantized_model_init"),
        "what quantisation leaves of a chain is random, and its bound is not worked out yet",
    ),
    _of_one_layer(
        "chain-takes-no-such-argument",
        ("path", "is_first_microbatch", "save_original_input"),
        "a chain takes no such argument, and chooses its path by itself",
    ),
)

CONSTRAINTS = (
    *_CHAIN,
    *RECIPES,
    *CALLING,
    *STEPS,
    Constraint(
        name="fusion-needs-main-grad",
        why="fused accumulation adds to a main_grad, and there is none; ask for main_grad=attached",
        rejects=lambda case: case.fuse_wgrad_accumulation and case.main_grad == "absent",
        about=(("fuse_wgrad_accumulation", "main_grad"),),
    ),
    Constraint(
        name="only-with-fusion",
        why=f"{', '.join(_FUSED_ALONE)} mean nothing where wgrad is not added to main_grad; ask for fuse_wgrad=1",
        rejects=lambda case: (
            not case.fuse_wgrad_accumulation
            and any(getattr(case, name) != value for name, value in _FUSED_ALONE.items())
        ),
        about=tuple(("fuse_wgrad_accumulation", name) for name in _FUSED_ALONE),
    ),
    Constraint(
        name="one-weight-has-one-attribute",
        why="a packed weight, or the only one, is frozen or overwritten as a whole; ask for all",
        rejects=lambda case: (
            (case.single_grouped_weight or case.num_gemms == 1)
            and (case.overwrite_main_grad == "some" or case.frozen_weights in ("first", "last"))
        ),
        about=tuple(
            (of, what)
            for of in ("single_grouped_weight", "num_gemms")
            for what in ("overwrite_main_grad", "frozen_weights")
        ),
    ),
    Constraint(
        name="frozen-bias-needs-bias",
        why="there is no bias to freeze; ask for bias=1",
        rejects=lambda case: case.frozen_bias and not case.bias,
        about=(("frozen_bias", "bias"),),
    ),
    Constraint(
        name="bias-knobs-need-bias",
        why="single_grouped_bias and return_bias say what happens to a bias, and there is none; ask for bias=1",
        rejects=lambda case: (case.single_grouped_bias or case.return_bias) and not case.bias,
        about=(("single_grouped_bias", "bias"), ("return_bias", "bias")),
    ),
    Constraint(
        name="tail-needs-native",
        why="the legacy path of te:api=module takes no rows past sum(m_splits); ask for path=native",
        rejects=lambda case: (
            case.padded_tail != "none" and case.path != "native" and (case.provider, case.api) == ("te", "module")
        ),
        about=(("padded_tail", "path"),),
    ),
    Constraint(
        name="arguments-of-the-module",
        why="te:api=op and op_mlp take neither return_bias nor a list of splits, only te:api=module takes "
        "save_original_input, and a layer of plain torch takes its splits in one way",
        rejects=lambda case: (
            ((case.return_bias or case.m_splits_as == "list") and (case.provider, case.api) in _TE_OPS)
            or (case.save_original_input and (case.provider, case.api) != ("te", "module"))
            or (case.m_splits_as != "auto" and case.provider in ("torch", "faults"))
        ),
        about=(("return_bias",), ("m_splits_as",), ("save_original_input",)),
    ),
    Constraint(
        name="something-must-learn",
        why="weights, input and bias are all frozen: there is no gradient to ask for",
        rejects=_only_frozen,
        about=(("frozen_weights", "num_gemms", "frozen_input", "frozen_bias", "bias"),),
    ),
    Constraint(
        name="first-microbatch-is-an-argument",
        why="te:api=op takes no is_first_microbatch; ask for is_first_microbatch=unset",
        rejects=lambda case: case.is_first_microbatch != "unset" and (case.provider, case.api) == ("te", "op"),
        about=(("is_first_microbatch",),),
    ),
    Constraint(
        name="tied-weights-need-two-uses",
        why="one microbatch uses the weights once; ask for more microbatches",
        rejects=lambda case: case.tied_weights and case.microbatches < 2,
        about=(("tied_weights", "microbatches"),),
    ),
    Constraint(
        name="tied-uses-are-added",
        why="where each use of tied weights overwrites main_grad, one's is lost to the other's: what is then right "
        "is nobody's contract; ask for overwrite_main_grad=none and is_first_microbatch=unset",
        rejects=lambda case: case.tied_weights and overwriting_at_all(case),
        about=(("tied_weights", "overwrite_main_grad"), ("tied_weights", "is_first_microbatch")),
    ),
    Constraint(
        name="path-is-a-module-switch",
        why="only te:api=module can be told which GEMM path to take; ask for path=auto",
        rejects=lambda case: (
            case.path != "auto"
            and (case.provider, case.api) != ("te", "module")
            and not ((case.provider, case.api) == ("te", "op") and case.path in ("legacy", "native"))
        ),
        about=(("path",),),
    ),
    Constraint(
        name="op-path-is-left-open",
        why="te:api=op takes one path by itself, so that a matrix has each of its cases once; ask for path=auto, or "
        "name the case: --case",
        rejects=lambda case: case.path in ("legacy", "native") and (case.provider, case.api) == ("te", "op"),
        about=(("path",),),
        in_matrices=True,
    ),
    Constraint(
        name="cutlass-needs-tokens",
        why="only kernels tell CUTLASS from the legacy path, and where no expert has a token none runs; ask for "
        "path=legacy",
        rejects=lambda case: case.path == "cutlass" and not any(map(sum, map(case.splits, range(case.microbatches)))),
        about=(("path", "m_splits"),),
    ),
    Constraint(
        name="pattern-needs-experts",
        why="with so few experts this m_splits is the same as a simpler one; ask for more num_gemms",
        rejects=lambda case: case.num_gemms < splits.FEWEST_EXPERTS.get(case.m_splits, 1),
        about=(("m_splits", "num_gemms"),),
    ),
    Constraint(
        name="pattern-needs-tokens",
        why="at this tokens_per_expert every expert gets the same, as in balanced; ask for more tokens",
        rejects=lambda case: not case.explicit_splits and _is_balanced_by_size(case),
        about=(("m_splits", "num_gemms", "tokens_per_expert"),),
    ),
)
