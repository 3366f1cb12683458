"""When does the stand-in take the native grouped path, and when does it refuse?"""

from __future__ import annotations

import os
import warnings

import torch

from transformer_engine import __version__
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.quantization import STATE

VERSION = tuple(int(part) for part in __version__.split("."))
# As cublasLtGetVersion counts: 130400 is 13.4. 0 stands for a library that fails.
CUBLASLT = int(os.environ.get("FAKE_TE_CUBLASLT", "130500"))
_HOPPER_NEEDS, _CURRENT_SCALING_NEEDS = 130400, 130500
# Whether the autograd node tells which path it took: a later version may call that by another name.
TELLS_PATH = os.environ.get("FAKE_TE_TELLS_PATH", "1") == "1"


def single_weight(asked: bool) -> bool:  # noqa: FBT001 - an argument that is handed on
    """The gate of the packed layout: without its variable a mere warning, and separate parameters."""
    if not asked or VERSION < (2, 15):
        return asked
    if int(os.environ.get("NVTE_GROUPED_LINEAR_SINGLE_PARAM", "0")) > 0:
        warnings.warn("GroupedLinear with single parameters is experimental.", UserWarning, stacklevel=3)
        return True
    warnings.warn(
        "single_grouped_weight=True was asked for and NVTE_GROUPED_LINEAR_SINGLE_PARAM is not set: "
        "falling back to per-expert parameters.",
        UserWarning,
        stacklevel=3,
    )
    return False


def module_goes_native(*, asked: bool, dtype: torch.dtype) -> bool:
    """The module: only where it is asked to, from 2.17 on; from 2.18 on only with a cuBLAS that can."""
    able = VERSION >= (2, 17) and dtype in (torch.bfloat16, torch.float16)
    return asked and able and _recipe_goes_native() and (VERSION < (2, 18) or CUBLASLT >= _HOPPER_NEEDS)


def op_goes_native(dtype: torch.dtype) -> bool:
    """The op: by itself, on Hopper from 2.17 on; from 2.19 on only with a cuBLAS that can."""
    able = VERSION >= (2, 17) and dtype in (torch.bfloat16, torch.float16)
    return able and _recipe_goes_native() and (VERSION < (2, 19) or CUBLASLT >= _HOPPER_NEEDS)


def _recipe_goes_native() -> bool:
    """On Hopper Float8CurrentScaling alone, from 2.18 and cuBLASLt 13.5 on."""
    current = isinstance(STATE.recipe, Float8CurrentScaling)
    return STATE.recipe is None or (current and VERSION >= (2, 18) and CUBLASLT >= _CURRENT_SCALING_NEEDS)


def module_packs() -> bool:
    """Whether the module packs what it keeps quantised; it says nothing where it does not."""
    return STATE.kept is None or (isinstance(STATE.kept, Float8CurrentScaling) and VERSION >= (2, 19))


def check_op_packs() -> None:
    """Whether the op does."""
    if isinstance(STATE.kept, DelayedScaling) or (STATE.kept and VERSION < (2, 18)):
        current = "or float8 current scaling " if VERSION < (2, 18) else ""
        raise RuntimeError(f"Delayed scaling {current}is not supported with single_grouped_weight=True")


def check_dbias(*, native: bool, op: bool) -> None:
    """Whether the op, or the module's native path, may sum bias gradients by a kernel that adds in any order."""
    deterministic = os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"
    if deterministic and (op or native) and VERSION >= (2, 16):
        raise RuntimeError("grouped_dbias Triton kernel uses non-deterministic atomic adds, which nobody asked for")


def launches(*, native: bool, sums_over: int, dtype: torch.dtype, biased: bool, in_fp8: bool) -> str:
    """The kernel of a GEMM by the name that a device would give it; FAKE_TE_LAUNCHES is one that nobody tells of."""
    cutlass = os.environ.get("NVTE_USE_CUTLASS_GROUPED_GEMM", "0") == "1"
    cutlass &= not in_fp8 and dtype in (torch.bfloat16, torch.float16) and not biased and sums_over % 128 == 0
    path = os.environ.get("FAKE_TE_LAUNCHES") or ("native" if native else "cutlass" if cutlass else "legacy")
    return (_IN_FP8 if in_fp8 and path in _IN_FP8 else _KERNELS)[path]


CAST = "transformer_engine::multi_cast_transpose_kernel<__nv_bfloat16, __nv_fp8_e4m3>"
_KERNELS = {
    "native": "(anonymous namespace)::setup_grouped_gemm_kernel(void**)",
    "cutlass": "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>",
    "legacy": "cublasLt::nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT",
}
_IN_FP8 = {
    "native": "cublasLt::nvjet_sm90_qqtst_64x8_128x16_2x4_h_bx_AperBatchScalar_BperBatchScalar_ptrGroup_TNT",
    "legacy": "cublasLt::nvjet_sm90_qqtst_64x8_128x16_2x4_h_bz_TNT",
}


def check_grouped_gemm() -> None:
    """What the C++ side checks before a native grouped GEMM."""
    if not CUBLASLT:
        raise RuntimeError("cuBLAS Error: the library was not initialized")
    if CUBLASLT < _HOPPER_NEEDS:
        raise RuntimeError(
            f"nvte_grouped_gemm_with_discrete_inputA on Hopper (SM90) requires cuBLAS 13.4+, "
            f"but run-time cuBLAS version is {CUBLASLT}"
        )
