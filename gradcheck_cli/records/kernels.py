"""What do the names of kernels say of what ran? A table of patterns, each with its source, and what they show.

A name stands behind the phase in which it was launched: `forward: nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from gradcheck_cli.records.base import Record

# Set to 1 it sends the grouped GEMMs of the legacy path to CUTLASS, where that can (common/gemm/cublaslt_gemm.cu).
CUTLASS_SWITCH = "NVTE_USE_CUTLASS_GROUPED_GEMM"

Path = Literal["native", "legacy", "cutlass"]
Shown = Literal[Path, "fp8", "fp8_gemm", "plain_gemm", "grouped_mm", "gemm"]
PATHS: tuple[Path, ...] = ("native", "legacy", "cutlass")


class Sign(Record, frozen=True, kw_only=True):
    """A pattern of kernels' names, and what one of that name shows."""

    shows: Shown
    pattern: str
    source: str


_H200 = "seen on an H200 with 2.17.1 and 2.20.2, cuBLASLt 13.5"

SIGNS = (
    Sign(
        shows="native",
        pattern=r"setup_grouped_gemm_kernel",
        source=f"common/gemm/cublaslt_grouped_gemm.cu, before each grouped GEMM; {_H200}",
    ),
    Sign(
        shows="native",
        pattern=r"nvjet_\w*ptrGroup",
        source=f"cuBLASLt's grouped GEMM, which takes its operands by pointers: {_H200}, bf16 and FP8",
    ),
    Sign(
        shows="cutlass",
        pattern=r"GroupProblemShape",
        source=f"cutlass_grouped_gemm in common/gemm/cutlass_grouped_gemm.cuh, the shape of its GEMM; {_H200}",
    ),
    Sign(
        shows="legacy",
        pattern=r"nvjet_(?!\w*ptrGroup)",
        source=f"cuBLASLt's GEMM of one expert: {_H200}, bf16, fp16 and FP8",
    ),
    Sign(
        shows="legacy",
        pattern=r"cutlass_80_tensorop|s1688gemm",
        source="cuBLAS's TF32 GEMM of one expert, which is no CUTLASS of Transformer Engine's",
    ),
    Sign(
        shows="fp8",
        pattern=r"(?i)(fp8|float8)_e[45]m[23]",
        source=f"the type of an operand of Transformer Engine's casts (common/cast, common/transpose); {_H200}",
    ),
    Sign(shows="fp8", pattern=r"nvjet_sm\d+_q", source=f"the operands of cuBLASLt's FP8 GEMM: {_H200}"),
    Sign(shows="fp8_gemm", pattern=r"nvjet_sm\d+_q", source="the same"),
    Sign(shows="plain_gemm", pattern=r"nvjet_sm\d+_[a-pr-z]", source=f"those of its bf16 and fp16 GEMM: {_H200}"),
    Sign(shows="plain_gemm", pattern=r"s1688gemm", source="those of its TF32 GEMM"),
    Sign(shows="grouped_mm", pattern=r"aten::_grouped_mm$", source="torch's operator, on every device"),
    Sign(shows="gemm", pattern=r"aten::(\w*mm|linear|matmul)$", source="torch's operators that multiply"),
)


def shown(what: Shown, kernels: Sequence[str], phase: str = "") -> str:
    """The first kernel, of that phase or of any, that shows it, with its phase; "" where none does."""
    signs = [re.compile(sign.pattern) for sign in SIGNS if sign.shows == what]
    own = [name for name in kernels if name.startswith(f"{phase}: " if phase else "")]
    return next((name for name in own if any(sign.search(name) for sign in signs)), "")


def path_shown(kernels: Sequence[str]) -> str:
    """The path of Transformer Engine that ran, `native and legacy` where both did; "" where no name tells.

    Where CUTLASS has a part in it, the path of fprop and, where that is another, of the backward: `cutlass, then
    legacy`. The backward is called after its dgrad: its wgrad goes to cuBLASLt more often than not.
    """
    if shown("native", kernels):
        return " and ".join(path for path in PATHS if shown(path, kernels))
    ran = [_of_a_phase(kernels, phase) for phase in ("forward", "backward")]
    return ", then ".join(dict.fromkeys(path for path in ran if path))


def _of_a_phase(kernels: Sequence[str], phase: str) -> str:
    return "cutlass" if shown("cutlass", kernels, phase) else "legacy" if shown("legacy", kernels, phase) else ""
