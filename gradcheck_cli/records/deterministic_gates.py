"""What closes a path to a case that asks for determinism? A bias gradient that is summed by atomic additions.

`_launch_grouped_dbias` in transformer_engine/pytorch/triton/grouped_dbias_dscales.py raises then, as read in 2.17.1 and
2.20.2; https://github.com/NVIDIA/TransformerEngine/pull/2885 has it in its review.
"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gate import Gate

_FOUND = (
    "deterministic=1 with a bias, whose gradient a Triton kernel sums by atomic additions (TransformerEngine PR 2885)"
)


def deterministic_gates(case: Case, environment: Environment) -> list[Gate]:
    """`dbias` of a native path, and `dbias_split` of the op's legacy one, which splits grad_output."""
    if not (case.deterministic and case.bias):
        return []
    unlock = f"deterministic=0 or bias=0{' or path=legacy' if case.api == 'module' else ''}"
    fused = _fused(case, environment)
    names = ("dbias_split",) if fused else ("dbias", "dbias_split")
    return [Gate(name=name, found=_FOUND, unlock=unlock) for name in names]


def _fused(case: Case, environment: Environment) -> bool:
    """Whether a native path sums the bias gradient while it quantises grad_output (`bgrad_group_quantize`).

    Float8BlockScaling does in 2.20.2, where x asks for a gradient, and did not in 2.17.1.
    """
    if case.backward_override != "none":
        return False
    blocks = environment.version("transformer_engine") >= (2, 20) and not case.frozen_input
    return case.recipe == "MXFP8" or (case.recipe == "Float8BlockScaling" and blocks)
