"""Which numbers separate right from wrong, and where does each come from? Every numeric threshold stands here.

For a sum of n products a_i b_i, stored with unit roundoff u_out after accumulation with unit roundoff u_acc:

    |candidate - reference| <= u_out |reference| + gamma sum |a_i||b_i|,   gamma = LAMBDA sqrt(n) u_acc

Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., ch. 3, gives gamma = n u / (1 - n u) at worst;
Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J. Sci. Comput. 41, 2019), gives
lambda sqrt(n) u for rounding errors of mean zero, failing with probability at most 2 exp(-lambda^2 (1 - u)^2 / 2) for
each sum.
Data of one sign or without randomness need not have errors of mean zero: then n replaces sqrt(n).
"""

from __future__ import annotations

from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS, FP32, TF32
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.rounding import Rounding

# 2 exp(-LAMBDA^2 / 2) is 7e-4 for the weakest statement of the theorem, which assumes errors as large as they can be;
# the largest measured lambda of right sums is near 1 (reports/, `smallest_lambda` in observations.jsonl).
LAMBDA = 4.0

# Both operands of a TF32 product are rounded: |error| <= 2 TF32_LAMBDA u_in sqrt(sum a^2 b^2). Simulated for n = 256 to
# 7168 the error reaches 1.35 u_in sqrt(sum a^2 b^2) times two; measured on an H200 (reports/te-*-h200/core-*) 1.42
# times two. One element's error has a standard deviation near 0.6 u_in sqrt(sum a^2 b^2), and the bound is at six.
TF32_LAMBDA = 2.0

# Two tensors are recognised as the same content when their distance is below this many output roundings in the
# Frobenius norm: rounding alone moves a tensor by less than one.
RECOGNISED = 8.0


def rounding(case: Case, candidate: Candidate) -> dict[Role, Rounding]:
    """The coefficients of every role's bound; `compute/contents.py` applies them element by element."""
    stored = FORMATS[case.dtype]
    tf32 = case.dtype == "fp32" and candidate.fp32_products == "tf32"
    uniform = case.grad_output == "expanded"

    def of(role: Role) -> Rounding:
        hook = candidate.main_grad_written_by == "hook"
        fused = role == "wgrad" and case.fuse_wgrad_accumulation
        return Rounding(
            store=stored.unit_roundoff,
            floor=stored.half_subnormal,
            buffer=FP32.unit_roundoff if fused else stored.unit_roundoff,
            accumulate=FP32.unit_roundoff,
            linear=uniform and role != "fprop",
            operands=2 * TF32_LAMBDA * TF32.unit_roundoff if tf32 and role != "bgrad" else 0.0,
            lambda_=LAMBDA,
            rounds_before_adding=hook or not fused,
        )

    return {"fprop": of("fprop"), "dgrad": of("dgrad"), "wgrad": of("wgrad"), "bgrad": of("bgrad")}


def recognised(dtype: str) -> float:
    """Relative distance (Frobenius) below which a tensor holds what a hypothesis says."""
    return RECOGNISED * FORMATS[dtype].unit_roundoff
