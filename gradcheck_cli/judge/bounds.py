"""Which numbers separate right from wrong, and where does each come from? Every numeric threshold stands here.

For a sum of n products a_i b_i, stored with unit roundoff u_out after accumulation with unit roundoff u_acc:

    |candidate - reference| <= u_out |reference| + gamma sum |a_i||b_i|,   gamma = LAMBDA sqrt(n) u_acc

The terms, as `records/rounding.py` names them and `compute/contents.py` adds them up. ASNA is Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed. (2002); u = 2^-p for a significand of p bits (`records/dtype.py`).

store       Output rounding: rounding to nearest errs by u times the value at most (ASNA, sec. 2.1). Once for each
            result that is stored, partial ones of microbatches and a product without its bias included.
floor       Below the smallest normal number N that error is absolute: half the spacing of the subnormals, u N (ASNA,
            sec. 2.2, the model with underflow). Once for each such rounding.
accumulate  Accumulator: gamma = n u / (1 - n u) at worst (ASNA, sec. 3.1); lambda sqrt(n) u for rounding errors of mean
            zero (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41,
            2019), failing with probability at most 2 exp(-lambda^2 (1 - u)^2 / 2) for each sum. u is fp32's: GEMMs of
            16-bit operands, whose products fp32 holds exactly, accumulate in fp32 on every path. Tensor cores cut off
            where they add (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ
            Comput. Sci. 7, 2021), which is no error of mean zero; measured, their sums stay near lambda = 1.
linear      Terms of one sign or without randomness, as those of bgrad under grad_output=expanded, need not have errors
            of mean zero: n replaces sqrt(n). LAMBDA n u is more than the worst case n u / (1 - n u) while n u < 3/4.
            In the other sums a uniform grad_output multiplies random weights or x, whose errors have mean zero.
operands    TF32 input rounding, TF32_LAMBDA below: errors a_i b_i (d_i + e_i) with |d_i|, |e_i| <= 2^-11, of mean zero
            and independent, add up like sqrt(sum a_i^2 b_i^2) (Hoeffding's inequality, as in Higham and Mary).
            Of a recipe the reference multiplies what quantisation leaves, bit for bit (`compute/quantised.py`): x times
            its scale in fp32, to the nearest number of FP8, times the inverse of the scale in fp32. Nothing is granted
            for it: a scale that is off by one unit in its last place, as 1 / amax times 448 is, moves a few elements by
            a unit of FP8, and Transformer Engine divides with `__fdiv_rn` so that none is. Where scales are powers of
            two, candidates multiply these very numbers. Else a candidate that multiplies by both inverses before its
            GEMM rounds each operand once to fp32's u, with |d_i|, |e_i| <= u of mean zero: by Hoeffding lambda sqrt(2)
            u sqrt(sum a_i^2 b_i^2). One that multiplies the sum by both instead errs by 2 u of it, below `accumulate`.
            Where an override leaves the backward unquantised, its products are those of the dtype, TF32 included; what
            the forward quantised, one operand of each, te dequantises into that dtype: lambda u sqrt(sum a_i^2 b_i^2)
            (transformer_engine/pytorch/module/grouped_linear.py, `dequantize(dtype=ctx.activation_dtype)`).
bias        An FP8 GEMM takes no bias in fp32, so that te rounds it to bf16 (ibid., `bias_dtype = torch.bfloat16`): u of
            bf16 times the bias.
narrow      FP8 tensor cores of Hopper align 32 products with their running sum, of each of which they keep the 14
            highest bits (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, sec. 3.5.2): cut off, 2^-14 of
            the largest M at a time in the mean, of one sign, n times. Of random terms M is a partial sum, of size
            sqrt(n) |a||b| = S / sqrt(n): 2^-14 sqrt(n) S. With use_split_accumulator the sum of 128 products is added
            in fp32, so that sqrt(128) of each part's S adds up to sqrt(128) S; DelayedScaling and Float8CurrentScaling
            leave it out of fprop (transformer_engine/pytorch/module/base.py, _2X_ACC_FPROP, and common/recipe).
            Measured on an H200: 375 right layers of te needed a lambda of 0.6 at most (`reports/calibration/`).
buffer      Microbatches in a buffer: adding one errs by u of the buffer's dtype times the new partial sum (ASNA,
            sec. 4.2: the error of a recursive sum is the sum of d_i T_i over its partial sums T_i). A GEMM that
            accumulates into main_grad adds it inside: one term more, |buffer| part of the scale, one rounding;
            into a bf16 main_grad cuBLAS rounds its product first, as measured on an H200 (Transformer Engine's legacy
            path; the native one does not): one more of the product. Two uses of tied weights in one step may be added
            in either order, with other partial sums, or joined first where autograd does it, which errs by `store` of
            their sum: the largest of these, term by term (`compute/orders.py`).
carried     Of a chain, api=op_mlp, the operands are off themselves (`compute/chain.py`). A rounding error of mean zero
            that is at most e is sub-Gaussian with deviation e (Hoeffding's lemma); of independent ones, e_j times c_j
            each, the sum exceeds lambda sqrt(sum e_j^2 c_j^2) with probability at most 2 exp(-lambda^2 / 2). So each
            tensor between the layers has a deviation, squares of which add up: for each time that a path stores it,
            half the spacing of numbers where v may be, u 2^e from 2^e on (ASNA, sec. 2.1), + floor; sqrt(n) u S and the
            operands term of its own sum over lambda; and through f(v_1, v_2, ...) those of its factors, times
            |df/dv_i|. silu has the derivative sigma (1 + a (1 - sigma)), which changes by 1/2 of a change of a at most,
            by (2 + |a|) exp(-|a|) of it far from 0; what second order leaves is added in full, with every error at
            lambda. A product with the other operand B then carries sqrt(D^2 B^2), as `free`. Where grad_output is
            uniform all tokens of an expert share the error of fc2's dgrad: that part of fc1's wgrad is |sum of what it
            multiplies| times it.
"""

from __future__ import annotations

import math

from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import BF16, FORMATS, FP32, TF32
from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.recipe import Recipe, in_fp8, recipe_of
from gradcheck_cli.records.roles import OF_A_CHAIN, WEIGHTS, is_chain
from gradcheck_cli.records.rounding import Rounding

# 2 exp(-LAMBDA^2 / 2) is 7e-4 for the weakest statement of the theorem, which assumes errors as large as they can be;
# over 20,800 random cases on a CPU right sums need 1.3 at most, over 2,139 on an H200 0.7 (reports/calibration). Chains
# need 3.0 over 700 on a CPU in 16 bits, where most is carried, and 0.4 in fp32. Output rounding and the buffers reach
# 1.0 of their terms there, TF32 0.73. Where growth is linear, what is summed are ones, which need nothing; kept for a
# sum that is cut off at each addition, which errs by 2 n u.
LAMBDA = 4.0

# Both operands of a TF32 product are rounded: |error| <= 2 TF32_LAMBDA u_in sqrt(sum a^2 b^2). Simulated for n = 256 to
# 7168 the error reaches 1.35 u_in sqrt(sum a^2 b^2) times two; measured on an H200 (reports/te-*-h200/core-*) 1.42
# times two. One element's error has a standard deviation near 0.6 u_in sqrt(sum a^2 b^2), and the bound is at six.
TF32_LAMBDA = 2.0

# Of the tensor cores on which te runs a recipe; MXFP8 runs where there are none of these. Both from the report.
FP8_ACCUMULATOR = 2.0**-14
PROMOTED = 128

# A comparison tells something where more than this share of what is expected is not zero. Of thin data with that share
# all 64 elements of a row or a tile that a wrong path leaves out are zero anyway with probability (7/8)^64 = 2e-4,
# below what LAMBDA grants; of a right path's own gradients on exact data only those of experts with few tokens beside
# one with thousands are thinner (down to 0.01), and random data judges these.
NONZERO_SHARE = 1 / 8

# Two tensors are recognised as the same content when their distance is below this many output roundings in the
# Frobenius norm: rounding alone moves a tensor by less than one.
RECOGNISED = 8.0

# A wrong content explains an error where it is this many times nearer than the right one: an error that it explains
# leaves it as near as roundings do, and one that it does not leaves both about as far.
NEARER = 4.0


def rounding(case: Case, candidate: Candidate) -> dict[Role, Rounding]:
    """The coefficients of every role's bound; `compute/contents.py` applies them element by element."""
    stored = FORMATS[case.dtype]
    uniform = case.grad_output == "expanded"
    recipe = recipe_of(case)

    def of(role: Role) -> Rounding:
        hook = candidate.main_grad_written_by == "hook"
        fp8 = role != "bgrad" and in_fp8(case, role) and on_fp8_tensor_cores(recipe, candidate)
        fused = role in WEIGHTS and case.fuse_wgrad_accumulation
        return Rounding(
            store=stored.unit_roundoff,
            floor=stored.half_subnormal,
            buffer=FORMATS[case.main_grad_dtype].unit_roundoff if fused else stored.unit_roundoff,
            accumulate=FP32.unit_roundoff,
            linear=uniform and role == "bgrad",
            operands=0.0 if role == "bgrad" else _operands(case, candidate, role),
            narrow=FP8_ACCUMULATOR if fp8 else 0.0,
            bias=BF16.unit_roundoff if fp8 and role == "fprop" and case.dtype == "fp32" else 0.0,
            promoted=PROMOTED if fp8 and not (role == "fprop" and recipe and recipe.scale == "quotient") else 0,
            lambda_=LAMBDA,
            rounds_before_adding=hook or not fused,
        )

    return {role: of(role) for role in ROLES if is_chain(case) or role not in OF_A_CHAIN}


def _operands(case: Case, candidate: Candidate, role: Role) -> float:
    recipe, tf32 = recipe_of(case), case.dtype == "fp32" and candidate.fp32_products == "tf32"
    inverse = LAMBDA * math.sqrt(2) * FP32.unit_roundoff if recipe and recipe.scale == "quotient" else 0.0
    if in_fp8(case, role):
        return inverse
    left = case.quantized_model_init or case.backward_override == "dequantized"
    dequantised = LAMBDA * FORMATS[case.dtype].unit_roundoff if left and candidate.needs_cuda else 0.0
    return inverse + dequantised + (2 * TF32_LAMBDA * TF32.unit_roundoff if tf32 else 0.0)


def on_fp8_tensor_cores(recipe: Recipe | None, candidate: Candidate) -> bool:
    """Whether products meet in the accumulator of Hopper's FP8 tensor cores."""
    return recipe is not None and candidate.needs_cuda and recipe.name != "MXFP8"


def recognised(dtype: str) -> float:
    """Relative distance (Frobenius) below which a tensor holds what a hypothesis says."""
    return RECOGNISED * FORMATS[dtype].unit_roundoff


# Two runs of one case. A share of the bound: below a twentieth of it, four times as much is still a fifth.
GROWN, LEAST_LEFT = 4.0, 0.05
# The first case of a worker pays for what it loads: up to 1.2 s between recorded runs of the same right cases.
SLOWER, LEAST_SECONDS = 2.0, 2.0


def grown(before: float, after: float) -> bool:
    """Whether what is left of an error after output rounding grew out of proportion from one run to another."""
    return after >= GROWN * max(before, LEAST_LEFT)


def slowed(before: float, after: float) -> bool:
    """Whether a case took out of proportion longer than in another run."""
    return after >= SLOWER * before and after - before >= LEAST_SECONDS
