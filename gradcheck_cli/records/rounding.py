"""How does a path round? Coefficients of a role's bound: derived in judge/bounds.py, applied in compute/contents.py."""

from __future__ import annotations

from gradcheck_cli.records.base import Record


class Rounding(Record, frozen=True, kw_only=True):
    """Coefficients of the componentwise bound of one role (see `judge/bounds.py` for each term's source).

    Per element, for a value r that is a sum of n products with scale S = sum |a||b| and energy Q = sqrt(sum a^2 b^2):

        fixed = store * (|r| + |partial results stored on the way|) + floor * (number of roundings) + bias * |b|
        free  = (accumulate * growth(n) + narrow * sqrt(min(n, promoted))) * S
        bound = fixed + lambda_ * free + operands * Q
    """

    store: float  # unit roundoff of the dtype each result is stored in
    floor: float  # half the smallest subnormal of that dtype
    buffer: float  # unit roundoff of the buffer that microbatches meet in; 0 where nothing is added
    accumulate: float  # unit roundoff of the accumulator
    linear: bool  # growth(n) is n (worst case, as of terms of one sign) instead of sqrt(n) (mean-zero errors)
    narrow: float = 0.0  # of an accumulator of fewer bits than fp32 that products meet in first; 0 where there is none
    promoted: int = 0  # so many products meet there before their sum is added in fp32; 0 where all do
    bias: float = 0.0  # unit roundoff of the dtype that a bias is rounded to before it is added; 0 where it is its own
    operands: float  # rounding of the operands, its own factor included; 0 where they are exact
    lambda_: float
    rounds_before_adding: bool  # each microbatch is rounded to `store` before it meets the buffer
