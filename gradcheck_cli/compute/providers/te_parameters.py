"""Where are the parameters of a Transformer Engine GroupedLinear, and which path did it take?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformer_engine

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.environment import version


class TEParameters:
    """The parameters of `te.GroupedLinear` or `te.ops.GroupedLinear`, read by name as registered.

    Packed layers register `weight` (G, N, K), others `weight0` ...; a name that the layout does not use is absent or
    None. Biases are `bias0` ...
    """

    def __init__(self, layer: Any, experts: int) -> None:
        self.layer = layer
        self.experts = experts

    @property
    def packed(self) -> bool:
        """Whether there is a single (G, N, K) parameter."""
        return getattr(self.layer, "weight", None) is not None

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """One packed parameter, or G."""
        return [self.layer.weight] if self.packed else [getattr(self.layer, f"weight{i}") for i in range(self.experts)]

    @property
    def biases(self) -> Sequence[torch.Tensor]:
        """G parameters; the empty tensors that stand for "no bias" are not parameters."""
        named = [getattr(self.layer, f"bias{i}", None) for i in range(self.experts)]
        return [bias for bias in named if isinstance(bias, torch.nn.Parameter)]

    def backward_dw(self) -> None:
        """The wgrad GEMMs that a backward left open."""
        self.layer.backward_dw()

    @torch.no_grad()
    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N) into the parameters."""
        if self.packed:
            # A GroupedTensor forbids shape-manipulating ops; its storage is one flat buffer
            # (transformer_engine/pytorch/tensor/grouped_tensor.py).
            self.layer.weight.rowwise_data.view(weight.shape).copy_(weight)
        else:
            for parameter, value in zip(self.weights, weight, strict=True):
                parameter.copy_(value)
        for parameter, value in zip(self.biases, [] if bias is None else bias, strict=True):
            parameter.copy_(value)

    def layout(self) -> dict[str, str | int]:
        """Layout and dtype, read from the parameters."""
        names = {dtype: name for name, dtype in DTYPES.items()}
        first = self.weights[0]
        return {
            "single_grouped_weight": int(self.packed),
            "dtype": names.get(first.dtype, str(first.dtype)),
            "bias": int(len(self.biases) > 0),
            "num_gemms": first.shape[0] if self.packed else len(self.weights),
        }


def path_taken(output: torch.Tensor) -> str:
    """native, legacy or unknown, as the autograd node that made the output remembers it.

    Transformer Engine 2.17 and 2.18 keep `use_grouped_tensor_path` in the module's context, 2.19 and later
    `grouped_tensor_supported`; the op keeps `use_grouped_tensor_path` in the context of the basic op. Versions before
    2.17 have no native path on Hopper. A later one without either is unknown, which no request for a path can match.
    """
    for node in _contexts(output.grad_fn):
        for name in ("use_grouped_tensor_path", "grouped_tensor_supported"):
            taken = getattr(node, name, None)
            if taken is not None:
                return "native" if taken else "legacy"
    return "legacy" if version(str(transformer_engine.__version__)) < (2, 17) else "unknown"


def _contexts(node: Any, depth: int = 4) -> Iterator[Any]:
    if node is None or depth == 0:
        return
    yield node
    yield from getattr(node, "basic_op_ctxs", None) or ()
    for parent, _ in node.next_functions:
        yield from _contexts(parent, depth - 1)
