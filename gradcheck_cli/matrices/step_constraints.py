"""Which sequences of steps mean nothing, or are not worked out yet, and why?"""

from __future__ import annotations

from gradcheck_cli.matrices.constraint import Constraint
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen, steps_of
from gradcheck_cli.records.roles import CHAIN, is_chain


def _is_moved(case: Case) -> bool:
    return (case.optimizer, case.moved) != ("none", "none")


_BOTH = ("optimizer", "moved")

STEPS = (
    Constraint(
        name="step-needs-a-next-microbatch",
        why="an optimizer steps between two backwards, and there is one; ask for more microbatches",
        rejects=lambda case: case.optimizer != "none" and len(steps_of(case)) < 2,
        about=(("optimizer", "microbatches", "tied_weights"),),
    ),
    Constraint(
        name="step-needs-a-weight",
        why="every weight is frozen, and an optimizer without parameters raises; ask for frozen_weights=none",
        rejects=lambda case: case.optimizer != "none" and all(frozen(case, i) for i in range(case.num_gemms)),
        about=(("optimizer", "frozen_weights", "num_gemms"),),
    ),
    Constraint(
        name="kept-quantised-is-moved-by-its-own-rules",
        why="a weight that is kept quantised is written through a quantiser of its own, and what a step, .to() or "
        "load_state_dict() must leave of it is not worked out yet; ask for quantized_model_init=0",
        rejects=lambda case: case.quantized_model_init and _is_moved(case),
        about=tuple((axis, "quantized_model_init") for axis in _BOTH),
    ),
    Constraint(
        name="to-dtype-is-to-a-narrower-one",
        why="a layer that is to be moved to its dtype is built in fp32, which this one has already; ask for dtype=bf16 "
        "or fp16",
        rejects=lambda case: case.moved == "to_dtype" and case.dtype == "fp32",
        about=(("moved", "dtype"),),
    ),
    Constraint(
        name="chain-is-not-moved",
        why=f"of a chain of two layers neither steps nor moves are tried; of api={CHAIN} leave out optimizer and moved",
        rejects=lambda case: is_chain(case) and _is_moved(case),
        about=tuple((axis,) for axis in _BOTH),
    ),
)
