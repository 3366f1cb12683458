"""Which faults of a candidate does upstream itself describe? Known behaviour that a trainer must know, with its source.

Cited beside a finding, never instead of one: the contract asks for what a trainer needs. Read from Transformer Engine's
sources, 2.14 to 2.20.2; each was seen on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment, Version
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import CHAIN, WEIGHTS

_MODULE = "transformer_engine/pytorch/module/grouped_linear.py"
_OP = "transformer_engine/pytorch/ops/basic/grouped_linear.py"


class Oddity(NamedTuple):
    """A gradient that goes wrong in these cases, and why upstream has it so."""

    role: Role
    holds: Callable[[Case], bool]
    source: str
    apis: tuple[str, ...] = ("module",)
    before: Version = (9999,)


ODDITIES = (
    Oddity(
        "wgrad",
        lambda case: case.single_grouped_weight,
        "TransformerEngine issue 3234: up to 2.18 the packed parameter is not what autograd is given",
        before=(2, 19),
    ),
    Oddity(
        "bgrad",
        lambda case: case.single_grouped_weight and case.path != "native",
        "TransformerEngine issue 3234: without a wgrad GEMM the legacy path has no bias gradient",
        before=(2, 19),
    ),
    Oddity(
        "wgrad",
        lambda case: case.save_original_input and case.backward_override == "dequantized",
        "TransformerEngine PR 3141: the wgrad of a dequantized backward took the input as it was given, up to 2.17",
        before=(2, 18),
    ),
    Oddity(
        "wgrad",
        lambda case: case.frozen_weights in ("first", "last"),
        f"requires_grad is read of weight0, for all experts ({_MODULE}, `weights[0].requires_grad`)",
    ),
    Oddity(
        "bgrad",
        lambda case: case.frozen_weights in ("all", "first") and case.path != "native",
        f"the legacy path takes bias gradients out of the wgrad GEMM, and without one has none ({_MODULE})",
    ),
    Oddity(
        "wgrad",
        lambda case: case.overwrite_main_grad == "some",
        f"overwrite_main_grad is read of weight0, for all experts ({_MODULE}, {_OP})",
        apis=("module", "op", CHAIN),
    ),
    *(
        Oddity(
            role,
            lambda case: case.recompute == "te" and case.recipe == "DelayedScaling",
            "an op that te.checkpoint runs again quantises with the scales of by then: only modules bring back those "
            "of the first forward (transformer_engine/pytorch/module/base.py, in_fp8_activation_recompute_phase)",
            apis=("op", CHAIN),
        )
        for role in ("dgrad", "wgrad")
    ),
    Oddity(
        "wgrad",
        lambda case: case.cuda_graph != "none" and case.fuse_wgrad_accumulation,
        "a replay runs no Python, which alone sets grad_added_to_main_grad (transformer_engine/pytorch/graph.py)",
        apis=("module", "op"),
    ),
    Oddity(
        "wgrad",
        lambda case: case.delay_wgrad_compute and not case.fuse_wgrad_accumulation,
        f"backward_dw() assigns .grad and does not add to it ({_MODULE}, {_OP}, `backward_dw`)",
        apis=("module", "op"),
    ),
    Oddity(
        "bgrad",
        lambda case: case.delay_wgrad_compute,
        f"backward_dw() stores a bias gradient only where there is none yet ({_MODULE}, `backward_dw`)",
    ),
)


def described(case: Case, role: str, environment: Environment) -> str:
    """What upstream says of a wrong gradient of this case, with its source; "" where it says nothing."""
    if case.provider != "te":
        return ""
    here, own = environment.version("transformer_engine"), "wgrad" if role in WEIGHTS else role
    found = (
        one.source
        for one in ODDITIES
        if one.role == own and case.api in one.apis and here < one.before and one.holds(case)
    )
    return next(found, "")
