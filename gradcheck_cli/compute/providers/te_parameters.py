"""Where are the parameters of a Transformer Engine GroupedLinear, and which path did it take?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformer_engine

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.stored import buffer, is_quantised, members
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
        """One packed parameter, or G; the empty tensors that stand for "no bias" are not parameters."""
        packed = getattr(self.layer, "bias", None)
        if isinstance(packed, torch.nn.Parameter):
            return [packed]
        named = [getattr(self.layer, f"bias{i}", None) for i in range(self.experts)]
        return [bias for bias in named if isinstance(bias, torch.nn.Parameter)]

    def backward_dw(self) -> None:
        """The wgrad GEMMs that a backward left open."""
        self.layer.backward_dw()

    @torch.no_grad()
    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N) into the parameters; those that are kept quantised quantise it."""
        for parameters, values in ((self.weights, weight), (self.biases, bias)):
            if values is None:
                continue
            packed = len(parameters) == 1 and parameters[0].dim() == values.dim()
            if packed and not is_quantised(parameters[0]):
                # A GroupedTensor forbids what changes its shape (transformer_engine/pytorch/tensor/grouped_tensor.py).
                buffer(parameters[0]).view(values.shape).copy_(values)
                continue
            for parameter, value in zip(members(parameters[0]) if packed else parameters, values, strict=True):
                parameter.copy_(value)

    def layout(self) -> dict[str, str | int]:
        """Layout, dtype and whether the weights are kept quantised, read from the parameters."""
        names = {dtype: name for name, dtype in DTYPES.items()}
        first = self.weights[0]
        return {
            "single_grouped_weight": int(self.packed),
            "quantized_model_init": int(is_quantised(first)),
            "dtype": names.get(first.dtype, str(first.dtype)),
            "bias": int(len(self.biases) > 0),
            "single_grouped_bias": int(len(self.biases) == 1 and self.biases[0].dim() == 2),
            "num_gemms": first.shape[0] if self.packed else len(self.weights),
        }


def splits_as(how: str, m_splits: tuple[int, ...], device: torch.device) -> Any:
    """Splits as a list, or as an int64 tensor on the host or on the device."""
    if how == "list":
        return list(m_splits)
    return torch.tensor(m_splits, dtype=torch.int64, device=device if how == "device" else "cpu")


def path_taken(output: torch.Tensor) -> str:
    """native, legacy or unknown, as the autograd node that made the output remembers it; "" where none made it.

    Of a chain both layers say theirs: `native and legacy` where one took another.

    Transformer Engine 2.17 and 2.18 keep `use_grouped_tensor_path` in the module's context, 2.19 and later
    `grouped_tensor_supported`; the op keeps `use_grouped_tensor_path` in the context of the basic op. Versions before
    2.17 have no native path on Hopper. A later one without either is unknown, which no request for a path can match.
    """
    if output.grad_fn is None:
        return ""
    said = [
        "native" if taken else "legacy"
        for node in contexts(output.grad_fn)
        for name in ("use_grouped_tensor_path", "grouped_tensor_supported")
        if (taken := getattr(node, name, None)) is not None
    ]
    if said:
        return " and ".join(dict.fromkeys(said))
    return "legacy" if version(str(transformer_engine.__version__)) < (2, 17) else "unknown"


def contexts(node: Any, depth: int = 4) -> Iterator[Any]:
    """An autograd node, the contexts of the basic ops that it stands for, and those behind it."""
    if node is None or depth == 0:
        return
    yield node
    yield from getattr(node, "basic_op_ctxs", None) or ()
    for parent, _ in node.next_functions:
        yield from contexts(parent, depth - 1)
