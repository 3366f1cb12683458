"""What becomes of a layer that is moved before its first microbatch? By the ways in which a torch.nn.Module is."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.provider import DTYPES, Layer, Moving
from gradcheck_cli.records.case import Case


def move(case: Case, layer: Layer, inputs: Inputs) -> None:
    """Bring a loaded layer to the case's dtype, or give it other weights and load back those that it had."""
    if case.moved == "to_dtype":
        cast("Moving", layer).to(DTYPES[case.dtype])
    if case.moved == "load_state_dict":
        state = kept(cast("Moving", layer).state_dict())
        layer.load(-inputs.weight, None if inputs.bias is None else -inputs.bias)
        cast("Moving", layer).load_state_dict(state)


def kept(state: dict[str, Any]) -> dict[str, Any]:
    """A state_dict whose tensors are copies, as one that was written to a file."""
    return {name: one.clone() if isinstance(one, torch.Tensor) else copy.deepcopy(one) for name, one in state.items()}
