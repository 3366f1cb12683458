"""How do the fusible ops behave, version by version? `transformer_engine.pytorch.ops`: GroupedLinear, and a chain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from transformer_engine.pytorch import gates
from transformer_engine.pytorch.gemm import Call, GroupedGemm
from transformer_engine.pytorch.grouped_tensor import Layer, one_weight, packed, split
from transformer_engine.pytorch.quantization import notes, quantiser_of

__all__ = ["GroupedLinear", "ScaledSwiGLU", "Sequential"]


class GroupedLinear(Layer):
    """Chooses its path by itself; its packed weight gets its wgrad in all versions."""

    def __init__(  # noqa: PLR0913
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
        accumulate_into_main_grad: bool = False,
        single_grouped_weight: bool = False,
    ) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.single_grouped_weight = gates.single_weight(single_grouped_weight)
        self._accumulate_into_main_grad = accumulate_into_main_grad
        if self.single_grouped_weight:
            gates.check_op_packs()
            self.register_parameter("weight", packed(num_groups, out_features, in_features, dtype, device))
        for i in range(num_groups):
            weight = None if self.single_grouped_weight else one_weight(out_features, in_features, dtype, device)
            self.register_parameter(f"weight{i}", weight)
            zeros = torch.nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device))
            self.register_parameter(f"bias{i}", zeros if bias else None)

    def forward(self, x: torch.Tensor, split_sizes: Any) -> torch.Tensor:
        """Splits as a tensor: extra inputs of an op go through autograd."""
        if not isinstance(split_sizes, torch.Tensor):
            raise TypeError(f"extra inputs are tensors, got {type(split_sizes).__name__}")
        owners: list[Any] = [p for name, p in self.named_parameters() if name.startswith("weight")]
        biases = [p for name, p in self.named_parameters() if name.startswith("bias")]
        if self._accumulate_into_main_grad and not hasattr(owners[0], "main_grad"):
            raise RuntimeError("MAIN GRAD NOT FOUND")
        native = gates.op_goes_native(x.dtype)
        if self.single_grouped_weight and not native and gates.VERSION >= (2, 19):
            raise RuntimeError(
                "Single grouped parameters require the native grouped-tensor GroupedLinear path, which is unavailable."
            )
        if native:
            gates.check_grouped_gemm()
        ran = {"use_grouped_tensor_path": native, **notes("with_quantized_compute")}
        members = split(owners[0]) if self.single_grouped_weight else owners
        call = Call(
            splits=split_sizes.tolist(),
            members=members,
            weights=self._multiplied(members),
            biases=[bias.detach() for bias in biases],
            owners=owners,
            fused=self._accumulate_into_main_grad,
            native=native,
            quantiser=quantiser_of(self),
            notes={"basic_op_ctxs": [SimpleNamespace(**ran)]},
        )
        y: torch.Tensor = GroupedGemm.apply(call, x, *owners, *biases)  # type: ignore[no-untyped-call]
        return y


class ScaledSwiGLU(torch.nn.Module):
    """silu(a) b scales, where a is the first half of each row: rounded as often as until 2.19."""

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """x (T, 2 N), scales (T,) -> (T, N)."""
        gates, units = x.chunk(2, dim=-1)
        activated = (torch.nn.functional.silu(gates.float()) * units.float()).to(x.dtype)
        return activated * scales.unsqueeze(-1)


class Sequential(torch.nn.Sequential):
    """Each op takes the input that it has besides from those that are given, in order."""

    def forward(self, input: torch.Tensor, *extra_inputs: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The last op's output."""
        if len(extra_inputs) != len(self):
            raise ValueError(f"Expected {len(self)} extra inputs but got {len(extra_inputs)}")
        for op, extra in zip(self, extra_inputs, strict=True):
            input = op(input, extra)  # noqa: A001
        return input
