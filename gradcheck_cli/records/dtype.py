"""What numbers does a dtype hold?"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record

DtypeName = Literal["bf16", "fp16", "fp32"]
# The recipes of Transformer Engine, "BlockScaling" left out of the names of the last two.
RecipeName = Literal["none", "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8", "NVFP4"]


class Format(Record, frozen=True, kw_only=True):
    """A binary floating-point format (IEEE 754, and bfloat16 by the same rules)."""

    precision: int  # significand bits, the implicit one included
    smallest_exponent: int  # of the smallest normal number, 2**smallest_exponent
    largest: float

    @property
    def unit_roundoff(self) -> float:
        """u = 2**-precision: largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    @property
    def largest_exact_integer(self) -> int:
        """Every integer up to this magnitude is held exactly: 2**precision."""
        return 1 << self.precision

    @property
    def half_subnormal(self) -> float:
        """Largest absolute rounding error below the normal range: half the smallest subnormal."""
        return 2.0 ** (self.smallest_exponent - self.precision)


BF16 = Format(precision=8, smallest_exponent=-126, largest=3.3895313892515355e38)
FP16 = Format(precision=11, smallest_exponent=-14, largest=65504.0)
FP32 = Format(precision=24, smallest_exponent=-126, largest=3.4028234663852886e38)
TF32 = Format(precision=11, smallest_exponent=-126, largest=3.4011621342146535e38)

FORMATS: dict[str, Format] = {"bf16": BF16, "fp16": FP16, "fp32": FP32}
