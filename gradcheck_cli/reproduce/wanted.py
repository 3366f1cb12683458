"""What is a script to show, and with what data?"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.roles import WEIGHTS, is_chain
from gradcheck_cli.records.verdict import Outcome

MOST_LINES = 40
FAULT = "FAULT:"  # how the line begins that names it; an interpreter that fails ends with 1 as well

# Of a gradient that is not there no value need be computed: normal data do, and no reference. Small integers round
# nowhere. Larger ones need the roundings that the layer must do. A power of two changes no digit, and is lost where a
# path has too few exponents. Of normal data only an error beyond some roundings is one.
Data = Literal["presence", "integers", "large integers", "scaled integers", "normal"]
KINDS: tuple[Data, ...] = ("integers", "large integers", "scaled integers", "normal")
# No recipe loses anything of 0, 1 and 2, but that the inverse of a scale which is no power of two rounds: by far less
# than what one of them differs by from the next.
LOSSLESS: Data = "integers"
SMALL, LARGE = 2, {"bf16": 16, "fp16": 64, "fp32": 64}  # sums of some products of large ones outgrow the dtype
_WIDE = {"x": -70, "w": 20, "g": 40}
EXPONENTS = {"bf16": _WIDE, "fp16": {"x": -20, "w": 1, "g": 3}, "fp32": _WIDE}


class Unscriptable(Exception):
    """No few lines can show this failure; the text says why."""


class Wanted(NamedTuple):
    """What a script is to show, with what data, and where: cuda or cpu."""

    case: Case
    failure: Failure
    data: Data
    device: str

    @property
    def looks_at_attributes(self) -> bool:
        """Whether a flag or a buffer's identity is wrong, and no value need be computed."""
        return self.failure.outcome in (Outcome.PROTOCOL, Outcome.UNEXPECTED) and not self.looks_at_shape

    @property
    def looks_at_shape(self) -> bool:
        """Whether the buffer's own shape or dtype is wrong."""
        return self.failure.diagnosis == "shape or dtype"

    @property
    def compares(self) -> bool:
        """Whether the failure is one of a gradient's value, presence or buffer."""
        return not self.looks_at_attributes and not self.failure.outcome.no_end

    @property
    def parameters(self) -> str:
        """The list of those whose gradient it is, of a gradient that is no parameter's the weights."""
        return {"bgrad": "biases", "wgrad_fc2": "weights_fc2"}.get(self.failure.role, "weights")

    @property
    def parameter(self) -> str:
        """What one of them is called."""
        names = {"biases": "bias", "weights_fc2": "weight of fc2"}
        return names.get(self.parameters, "weight of fc1" if is_chain(self.case) else "weight")

    @property
    def attaches_main_grad(self) -> bool:
        """Whether the weights need one for the failure to show."""
        role, said = self.failure.role, self.failure.diagnosis
        about = "main_grad" in said or said in ("flag set", "before backward_dw") or (role, said) == ("wgrad", "frozen")
        return self.case.main_grad == "attached" and (self.case.fuse_wgrad_accumulation or about)

    @property
    def into_main_grad(self) -> bool:
        """Whether what is compared is a weight gradient added to main_grad."""
        return self.failure.role in WEIGHTS and self.case.fuse_wgrad_accumulation

    @property
    def held_in(self) -> str:
        """The dtype of the buffer of what is compared: DTYPE is that of the parameters."""
        narrow = self.case.main_grad_dtype == "bf16"
        return "DTYPE" if not self.into_main_grad else "torch.bfloat16" if narrow else "torch.float32"

    @property
    def rounds(self) -> bool:
        """Whether the data make a right layer round, so that the script must round as well."""
        return self.data == "large integers"

    @property
    def rounds_in_steps(self) -> bool:
        """Whether a parameter's gradient may rightly round at other points than at each microbatch."""
        return self.rounds and (self.into_main_grad or self.case.microbatches > 1)

    @property
    def nearly(self) -> bool:
        """Whether integers come out of the inverse of a scale, near themselves."""
        return self.case.recipe != "none"

    def power(self, *tensors: str) -> str:
        """` * 2.0**e`, the power of two of a product of these."""
        own = dict(EXPONENTS[self.case.dtype])
        if self.case.grad_output == "expanded":
            own["g"] = 0
        return f" * 2.0**{sum(own[one] for one in tensors)}" if self.data == "scaled integers" else ""


def kinds(case: Case, failure: Failure) -> tuple[Data, ...]:
    """The data to try, in order; presence first, where a buffer that must hold the gradient is None or untouched."""
    fused = case.fuse_wgrad_accumulation and failure.role in WEIGHTS
    absent = failure.diagnosis == ("untouched" if fused else "none")
    missing = failure.outcome is Outcome.MISSING and failure.role not in ("case", "fprop") and absent
    if is_chain(case):  # it is judged on random data alone as well
        seen = missing or failure.outcome in (Outcome.MISPLACED, Outcome.NONFINITE)
        return ("presence",) if seen else ("normal",)
    own = KINDS if case.recipe == "none" else (LOSSLESS,)
    return ("presence", *own) if missing else own
