"""Which ways of calling a layer mean nothing, or are not worked out yet, and why?"""

from __future__ import annotations

from gradcheck_cli.matrices.constraint import Constraint
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.recipe import recipe_of
from gradcheck_cli.records.roles import is_chain

# What a captured forward and backward are not tried with: axis -> what it must be.
_NOT_CAPTURED = {
    "tied_weights": False,
    "retain_graph": False,
    "pipelined": False,
    "delay_wgrad_compute": False,
    "is_first_microbatch": "unset",
    "recompute": "none",
    "inference": "none",
    "stream": "default",
    "autocast": False,
    "compile": False,
    "optimizer": "none",
    "moved": "none",
    "recipe": "none",
}

# What a graph that is gone through twice is not tried with.
_NOT_RETAINED = {
    "tied_weights": False,
    "delay_wgrad_compute": False,
    "is_first_microbatch": "unset",
    "recompute": "none",
    "optimizer": "none",
    "recipe": "none",
}

# What two forwards before the backward of either are not tried with.
_NOT_PIPELINED = {
    "tied_weights": False,
    "retain_graph": False,
    "is_first_microbatch": "unset",
    "optimizer": "none",
    "recipe": "none",
}


def _loses_its_scales(case: Case) -> bool:
    recipe = recipe_of(case)
    return recipe is not None and recipe.delayed and case.recompute in ("reentrant", "nonreentrant")


CALLING = (
    Constraint(
        name="te-has-its-own-ways",
        why="only Transformer Engine has a checkpoint and a make_graphed_callables of its own; ask for torch's",
        rejects=lambda case: "te" in (case.recompute, case.cuda_graph) and case.provider != "te",
        about=(("recompute",), ("cuda_graph",)),
    ),
    Constraint(
        name="checkpoint-needs-an-input",
        why="a reentrant checkpoint runs nothing again where its input asks for no gradient; ask for "
        "recompute=nonreentrant, or frozen_input=0",
        rejects=lambda case: case.recompute in ("reentrant", "te") and case.frozen_input,
        about=(("recompute", "frozen_input"),),
    ),
    Constraint(
        name="reentrant-uses-go-one-by-one",
        why="a reentrant checkpoint goes backward through each use of tied weights by itself, so that the hooks of a "
        "data-parallel wrapper are called for each; ask for recompute=nonreentrant, or tied_weights=0",
        rejects=lambda case: case.recompute in ("reentrant", "te") and case.tied_weights,
        about=(("recompute", "tied_weights"),),
    ),
    Constraint(
        name="recomputed-calls-are-not-counted",
        why="a forward that is run again with its graph counts twice, so that nobody can say which microbatch is the "
        "first, and whose wgrad waits for backward_dw() in plain torch; ask for recompute=reentrant",
        rejects=lambda case: (
            case.recompute == "nonreentrant"
            and (case.is_first_microbatch != "unset" or (case.delay_wgrad_compute and case.provider != "te"))
        ),
        about=(("recompute", "is_first_microbatch"), ("recompute", "delay_wgrad_compute")),
    ),
    Constraint(
        name="scales-are-not-recomputed",
        why="torch's checkpoint does not bring back what DelayedScaling knew in the first forward; ask for "
        "recompute=te, or another recipe",
        rejects=_loses_its_scales,
        about=(("recompute", "recipe"),),
    ),
    Constraint(
        name="scales-see-an-inference",
        why="DelayedScaling notes the largest elements of an inference as well, and what its scales then are is not "
        "worked out yet; ask for inference=none, or another recipe",
        rejects=lambda case: case.inference != "none" and case.recipe == "DelayedScaling",
        about=(("inference", "recipe"),),
    ),
    Constraint(
        name="autocast-to-a-narrower-dtype",
        why="torch.autocast narrows an fp32 x to the dtype of the parameters; ask for dtype=bf16 or fp16, without a "
        "recipe",
        rejects=lambda case: case.autocast and (case.dtype == "fp32" or case.recipe != "none"),
        about=(("autocast", "dtype"), ("autocast", "recipe")),
    ),
    Constraint(
        name="te-is-not-compiled",
        why="torch.compile leaves Transformer Engine's layers as they are: the forward of te.GroupedLinear is marked "
        "no_torch_dynamo (transformer_engine/pytorch/module/grouped_linear.py), and an op has a fuser of its own; ask "
        "for compile=0, or a layer of torch",
        rejects=lambda case: case.compile and case.provider == "te",
        about=(("compile",),),
    ),
    Constraint(
        name="backward-dw-on-a-stream",
        why="without delay_wgrad_compute there is no backward_dw() to be put on a stream; ask for stream=backward",
        rejects=lambda case: case.stream == "backward_dw" and not case.delay_wgrad_compute,
        about=(("stream", "delay_wgrad_compute"),),
    ),
    Constraint(
        name="captured-alone",
        why=f"a captured forward and backward are not tried with {', '.join(_NOT_CAPTURED)} yet",
        rejects=lambda case: (
            case.cuda_graph != "none" and any(getattr(case, name) != value for name, value in _NOT_CAPTURED.items())
        ),
        about=tuple(("cuda_graph", name) for name in _NOT_CAPTURED),
    ),
    Constraint(
        name="compiled-anew",
        why="torch.compile may compile a forward anew for other sizes, and what that saves is not what the first one "
        "did: a nonreentrant checkpoint raises then; ask for recompute=reentrant, or compile=0",
        rejects=lambda case: case.compile and case.recompute == "nonreentrant",
        about=(("compile", "recompute"),),
    ),
    Constraint(
        name="a-graph-for-two",
        why="a graph is retained for the grad_output of another microbatch; ask for more microbatches",
        rejects=lambda case: case.retain_graph and case.microbatches < 2,
        about=(("retain_graph", "microbatches"),),
    ),
    Constraint(
        name="retained-alone",
        why=f"a graph that is gone through twice is not tried with {', '.join(_NOT_RETAINED)} yet, nor with a built-in "
        "fault, which counts forwards",
        rejects=lambda case: (
            case.retain_graph
            and (
                case.provider == "faults" or any(getattr(case, name) != plain for name, plain in _NOT_RETAINED.items())
            )
        ),
        about=(("retain_graph",), *(("retain_graph", name) for name in _NOT_RETAINED)),
    ),
    Constraint(
        name="a-pipeline-of-two",
        why="two microbatches go forward before either goes backward; ask for more microbatches",
        rejects=lambda case: case.pipelined and case.microbatches < 2,
        about=(("pipelined", "microbatches"),),
    ),
    Constraint(
        name="pipelined-alone",
        why=f"two forwards before the backward of either are not tried with {', '.join(_NOT_PIPELINED)} yet, nor with "
        "a built-in fault, which counts forwards",
        rejects=lambda case: (
            case.pipelined
            and (
                case.provider == "faults" or any(getattr(case, name) != plain for name, plain in _NOT_PIPELINED.items())
            )
        ),
        about=(("pipelined",), *(("pipelined", name) for name in _NOT_PIPELINED)),
    ),
    Constraint(
        name="chain-is-called-plainly",
        why="the probabilities of a chain are no argument of its forward, which a checkpoint, a graph or autocast "
        "would have to know; ask for a single layer",
        rejects=lambda case: (
            is_chain(case)
            and (
                case.recompute != "none"
                or case.cuda_graph != "none"
                or case.autocast
                or case.retain_graph
                or case.inference == "eval"
            )
        ),
        about=(("recompute",), ("cuda_graph",), ("autocast",), ("retain_graph",), ("inference",)),
    ),
)
