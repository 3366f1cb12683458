"""What is known of a provider before it is imported?"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record


class Candidate(Record, frozen=True, kw_only=True):
    """A provider as the parent process knows it: names and facts, nothing imported.

    The parent never imports torch, so everything it must know to plan a run stands here: the entry points
    ("module:attribute", imported in the worker), the distribution that must be installed, the variables that
    must be set before the import, and how the layer rounds.
    """

    name: str
    apis: dict[str, str]
    summary: str
    distribution: str
    needs_cuda: bool = False
    environment: dict[str, str] = {}
    # path -> variables that choose it, set before the import for each case that asks for it, whatever the user has set.
    switches: dict[str, dict[str, str]] = {}
    # Variables that ask for determinism, set in the same way for each case that does.
    deterministic: dict[str, str] = {}
    # tf32: fp32 operands are rounded to the nearest TF32 number before they are multiplied, whatever torch's flags say.
    # Cutting the last bits off instead is twice as coarse and biased: it is judged INACCURATE.
    fp32_products: Literal["fp32", "tf32"] = "fp32"
    # "gemm": the wgrad GEMM adds into main_grad; "hook": wgrad is stored in the activation dtype, then added.
    main_grad_written_by: Literal["gemm", "hook"] = "gemm"
