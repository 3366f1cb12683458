"""What keeps the module from CUTLASS, and what would open it?

Read from `nvte_multi_tensor_gemm` in common/gemm/cublaslt_gemm.cu, which otherwise goes to cuBLAS without a word, each
of its calls by itself: fprop sums over in_features, dgrad over out_features, wgrad over the tokens of each expert.
"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gate import Gate

HOPPER = (9, 0)
MULTIPLE = 128


def cutlass_gates(case: Case, environment: Environment) -> list[Gate]:
    """Everything that keeps fprop or dgrad from it. A wgrad into an fp32 main_grad, or of other tokens, always is."""
    if case.path != "cutlass":
        return []
    here = environment.compute_capability or HOPPER
    # A frozen input has no dgrad.
    sums = {"in_features": case.in_features} | ({} if case.frozen_input else {"out_features": case.out_features})
    odd = [f"{name}={size}" for name, size in sums.items() if size % MULTIPLE]
    shut = {
        f"compute capability {here[0]}.{here[1]}": ("a GPU of compute capability 9.0 (Hopper)", here != HOPPER),
        "fp32 operands": ("dtype=bf16 or dtype=fp16", case.dtype == "fp32"),
        "operands that a recipe quantises": ("recipe=none", case.recipe != "none"),
        "a bias that the GEMM adds": ("bias=0 or return_bias=1", case.bias and not case.return_bias),
        f"{' and '.join(odd)}, no multiple of {MULTIPLE}": (f"multiples of {MULTIPLE}", bool(odd)),
    }
    return [Gate(name="cutlass", found=found, unlock=unlock) for found, (unlock, closed) in shut.items() if closed]
