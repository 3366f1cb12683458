"""How far is what was found from what may be there? Error statistics per expert; no threshold, no opinion."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.contents import Content, Contents
from gradcheck_cli.compute.observe import Found
from gradcheck_cli.records.observation import INFINITE, Deviation, SlotSeen

# Rows of the table that leaves the device in one transfer, one column per row of the tensor.
DIFFERING, ERROR, RATIO, AFTER, LAMBDA, COLUMN, EXPECTED, FOUND = range(8)


def measure(found: Found, contents: Contents, rows: list[int], lambda_: float, *, bounded: bool) -> list[SlotSeen]:
    """One SlotSeen per expert; `rows[i]` is the number of rows of expert i in the flattened tensors."""
    present = [i for i, tensor in enumerate(found.experts) if tensor is not None]
    seen = [_bare(found, i) for i in range(len(found.experts))]
    if not present:
        return seen
    # Experts without their tensor hold zeros in the joined one; their numbers are not looked at.
    joined = torch.cat([_or_zeros(tensor, size, found) for tensor, size in zip(found.experts, rows, strict=True)])
    shape = next(iter(contents.right.values())).value.shape
    joined = joined.double().reshape(-1, shape[-1])
    deviations = {
        name: deviation_per_expert(joined, content, rows, lambda_, bounded=bounded)
        for name, content in contents.right.items()
    }
    residuals = residual_per_expert(joined, contents, rows)
    nonfinite = _sums((~joined.isfinite()).double().sum(1), rows)
    delivered = contents.right.get("prefill+sum", next(iter(contents.right.values()))).value
    if "prefill" in contents.right:
        delivered = delivered - contents.right["prefill"].value
    nonzero = _sums((delivered.reshape(-1, shape[-1]) != 0).double().sum(1), rows)
    for i in present:
        seen[i] = _bare(
            found,
            i,
            nonfinite=int(nonfinite[i]),
            nonzero_expected=int(nonzero[i]),
            contents={name: per_expert[i] for name, per_expert in deviations.items()},
            residuals={name: per_expert[i] for name, per_expert in residuals.items()},
        )
    return seen


def deviation_per_expert(
    found: torch.Tensor, content: Content, rows: list[int], lambda_: float, *, bounded: bool
) -> list[Deviation]:
    """found (R, C) against one content, reduced to each expert's rows."""
    table = row_table(found, content, lambda_).cpu()
    bounded = bounded and content.fixed is not None
    result = []
    for part in table.split(rows, dim=1):
        if not part.numel():
            result.append(_nothing())
            continue
        at = int((part[RATIO] if bounded else part[ERROR]).argmax())
        top = part.max(dim=1).values.tolist()
        result.append(
            Deviation(
                compared=part.shape[1] * found.shape[1],
                differing=int(part[DIFFERING].sum()),
                largest_error=top[ERROR],
                worst=(at, int(part[COLUMN, at])),
                expected=float(part[EXPECTED, at]),
                found=float(part[FOUND, at]),
                ratio=top[RATIO] if bounded else None,
                after_rounding=top[AFTER] if bounded else None,
                smallest_lambda=top[LAMBDA] if bounded else None,
            )
        )
    return result


def row_table(found: torch.Tensor, content: Content, lambda_: float) -> torch.Tensor:
    """(8, R): each row's worst element; a non-finite element counts as infinitely wrong."""
    value = content.value.reshape(found.shape)
    error = torch.where(found.isfinite(), (found - value).abs(), INFINITE)
    zero = torch.zeros_like(error)
    fixed = zero if content.fixed is None else content.fixed.reshape(found.shape)
    free = zero if content.free is None else content.free.reshape(found.shape)
    operands = zero if content.operands is None else content.operands.reshape(found.shape)
    ratio = _quotient(error, fixed + lambda_ * free + operands)
    after = _quotient((error - fixed).clamp(min=0), lambda_ * free + operands)
    needed = _quotient((error - fixed - operands).clamp(min=0), free)
    if found.shape[1] == 0:
        return found.new_zeros(8, found.shape[0])
    rank = ratio if content.fixed is not None else error
    column = rank.argmax(dim=1, keepdim=True)
    clipped = torch.where(found.isfinite(), found, INFINITE)
    return torch.stack(
        [
            (found != value).double().sum(1),
            error.amax(1),
            ratio.amax(1),
            after.amax(1),
            needed.amax(1),
            column[:, 0].double(),
            value.gather(1, column)[:, 0],
            clipped.gather(1, column)[:, 0],
        ]
    )


def residual_per_expert(found: torch.Tensor, contents: Contents, rows: list[int]) -> dict[str, list[float]]:
    """|found - h| / |expected| in the Frobenius norm over each expert's finite elements, for each hypothesis h."""
    finite = torch.where(found.isfinite(), found, 0.0)
    right = {name: content.value for name, content in contents.right.items()}
    hypotheses = {name: value.reshape(found.shape) for name, value in (right | contents.wrong).items()}
    expected = next(iter(right.values())).reshape(found.shape)
    squares = [(finite - value).square().sum(1) for value in hypotheses.values()] + [expected.square().sum(1)]
    table = torch.stack(squares).cpu()
    parts = [part.sum(1).sqrt().tolist() for part in table.split(rows, dim=1)]
    return {
        name: [min(part[row] / part[-1], INFINITE) if part[-1] else part[row] for part in parts]
        for row, name in enumerate(hypotheses)
    }


def _quotient(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole; 0 / 0 is 0, and anything else over 0 is INFINITE."""
    whole_or_one = torch.where(whole > 0, whole, 1.0)
    over_zero = torch.where(part > 0, INFINITE, 0.0)
    return torch.where(whole > 0, part / whole_or_one, over_zero).clamp(max=INFINITE)


def _sums(per_row: torch.Tensor, rows: list[int]) -> list[float]:
    return [float(part.sum()) for part in per_row.cpu().split(rows)]


def _or_zeros(tensor: torch.Tensor | None, rows: int, found: Found) -> torch.Tensor:
    like = next(tensor for tensor in found.experts if tensor is not None)
    width = like.shape[-1]
    return like.new_zeros(rows, width) if tensor is None else tensor.reshape(rows, width)


def _bare(found: Found, expert: int, **measured: object) -> SlotSeen:
    return SlotSeen(
        role=found.role,
        expert=expert,
        buffer=found.buffer,
        present=found.experts[expert] is not None,
        shape=found.shape,
        dtype=found.dtype,
        added_flag=found.added_flag,
        replaced=found.replaced,
        **measured,  # type: ignore[arg-type]
    )


def _nothing() -> Deviation:
    """An expert without rows: nothing was compared."""
    return Deviation(
        compared=0,
        differing=0,
        largest_error=0.0,
        worst=(0, 0),
        expected=0.0,
        found=0.0,
        ratio=0.0,
        after_rounding=0.0,
        smallest_lambda=0.0,
    )
