"""Where are the elements of a parameter? In itself, or in the buffers that a subclass of torch.Tensor wraps."""

from __future__ import annotations

from typing import Any

import torch

# Where Transformer Engine's wrappers keep their elements, rows before columns: GroupedTensor, Float8BlockwiseQTensor
# and MXFP8Tensor, Float8Tensor (transformer_engine/pytorch/tensor/storage/*.py). A buffer that is not needed is None.
BUFFERS = ("rowwise_data", "_rowwise_data", "_data", "columnwise_data", "_columnwise_data", "_transpose")


def buffer(parameter: torch.Tensor) -> torch.Tensor:
    """The tensor in whose memory the elements of a parameter are: itself, or one that it wraps."""
    wrapped = (getattr(parameter, name, None) for name in BUFFERS)
    return next((one for one in wrapped if isinstance(one, torch.Tensor)), parameter).detach()


def is_quantised(parameter: torch.Tensor) -> bool:
    """Whether bytes stand for its elements, of which its dtype is the nominal one."""
    return buffer(parameter).dtype is torch.uint8 and parameter.dtype is not torch.uint8


def members(packed: torch.Tensor) -> list[Any]:
    """The matrices (N, K) of a packed parameter that is quantised, each over its part of the same memory."""
    grouped: Any = packed
    held = grouped.quantized_tensors
    return list(grouped.split_into_quantized_tensors() if held is None else held)


@torch.no_grad()
def elements(parameter: torch.Tensor) -> torch.Tensor:
    """The elements of a parameter, a packed one's in whatever shape; of a quantised one a copy in fp32."""
    if not is_quantised(parameter):
        return buffer(parameter)
    parts: list[Any] = members(parameter) if parameter.dim() == 3 else [parameter]
    left = [part.dequantize(dtype=torch.float32) for part in parts]
    return torch.stack(left) if parameter.dim() == 3 else left[0]
