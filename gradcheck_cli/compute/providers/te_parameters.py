"""Where are the parameters of a Transformer Engine GroupedLinear, and what can be done with it besides a forward?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformer_engine.pytorch

from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers.te_recipe import Quantised
from gradcheck_cli.compute.stored import buffer, is_quantised, members


class TEParameters:
    """The parameters of `te.GroupedLinear` or `te.ops.GroupedLinear`, read by name as registered.

    Packed layers register `weight` (G, N, K), others `weight0` ...; a name that the layout does not use is absent or
    None. Biases are `bias0` ...
    """

    def __init__(self, layer: Any, experts: int, quantised: Quantised) -> None:
        self.layer, self.quantised = layer, quantised
        self.experts = experts
        self._splits: dict[tuple[int, ...], torch.Tensor] = {}

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

    def train(self, *, mode: bool) -> object:
        """Go to training, or to evaluation."""
        return self.layer.train(mode)

    def to(self, dtype: torch.dtype) -> object:
        """Bring all parameters to a dtype."""
        return self.layer.to(dtype)

    def state_dict(self) -> dict[str, Any]:
        """All parameters by their names, and what Transformer Engine keeps besides."""
        state: dict[str, Any] = self.layer.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take the values of all parameters from a `state_dict()`."""
        return self.layer.load_state_dict(state_dict)

    def checkpoint(self, call: Any, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """te.checkpoint, which asks when it is called whether a recipe is in force, and then keeps its scales."""
        module: Any = transformer_engine.pytorch
        with self.quantised.context():
            y: torch.Tensor = module.checkpoint(call, x, m_splits)
        return y

    def graphed(self, module: torch.nn.Module, sample: tuple[torch.Tensor, ...]) -> Any:
        """te.make_graphed_callables."""
        te: Any = transformer_engine.pytorch
        return te.make_graphed_callables(module, sample)

    def given_splits(self, how: str, m_splits: tuple[int, ...], device: torch.device) -> Any:
        """`splits_as`, the same tensor for the same splits: none can be made while a CUDA graph is captured."""
        if how != "device":
            return splits_as(how, m_splits, device)
        if m_splits not in self._splits:
            self._splits[m_splits] = splits_as(how, m_splits, device)
        return self._splits[m_splits]

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
