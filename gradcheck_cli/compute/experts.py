"""What would one expert's rows be, had a product of theirs been taken wrongly? In fp64, for `hypotheses.py`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.reference import as_given, linear
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.splits import rows_of

AT_ONCE = 1 << 22  # elements in one call


def microbatch_of_expert(  # noqa: PLR0913  a role of an expert, and one of two faults
    case: Case,
    inputs: Inputs,
    k: int,
    role: Role,
    expert: int,
    *,
    only_last: int | None = None,
    unquantised: bool = False,
) -> torch.Tensor:
    """A role of one expert's rows, fp64, as a fault would have it; fprop without bias where `only_last`.

    `only_last`: of each sum only the last so many products. `unquantised`: without the case's recipe.
    """
    own, last = rows_of(case.splits(k), expert), slice(None if only_last is None else -only_last, None)
    whole = as_given(inputs, k) if unquantised else linear(case, inputs, k, role)
    x, g = (rows[own].double() for rows in (whole.x, whole.grad_output))
    w = whole.weight[expert].double()
    if role == "fprop":
        product = torch.mm(x[:, last], w[:, last].T)
        bias = inputs.bias_of(k)
        return product if bias is None or only_last is not None else product + bias[expert].double()
    if role == "dgrad":
        return torch.mm(g[:, last], w[last])
    return g[last].sum(0) if role == "bgrad" else torch.mm(g[last].T, x[last])


def through_each(case: Case, inputs: Inputs, k: int, role: Role, expert: int) -> Iterator[torch.Tensor]:
    """An expert's rows of an output or its gradient through each expert's weight, fp64 (experts, T, C), some at once.

    One by one they would be as many launches on a device as there are pairs of experts.
    """
    own, whole = rows_of(case.splits(k), expert), linear(case, inputs, k, role)
    x, g = (rows[own].double() for rows in (whole.x, whole.grad_output))
    bias = inputs.bias_of(k)
    for w in whole.weight.split(at_once(len(x) * max(whole.weight.shape[1:]))):
        if role == "dgrad":
            yield torch.matmul(g, w.double())
        else:
            product = torch.matmul(x, w.double().mT)
            yield product if bias is None else product + bias[expert].double()


def at_once(elements: int) -> int:
    """How many tensors of so many elements one call is for."""
    return max(1, AT_ONCE // max(1, elements))
