"""What are the axes of how a layer is called? Their values, and what they mean."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Recompute = Annotated[
    Literal["none", "reentrant", "nonreentrant", "te"],
    Meta(description="the forward is run again in the backward: torch's checkpoint, either kind, or te's"),
]
Inference = Annotated[
    Literal["none", "no_grad", "eval"],
    Meta(description="between each forward and its backward another one without gradients, or in eval mode as well"),
]
Stream = Annotated[
    Literal["default", "side", "backward", "backward_dw"],
    Meta(description="what runs on a CUDA stream of its own, ordered by events alone; side: all of it"),
]
CudaGraph = Annotated[
    Literal["none", "torch", "te"],
    Meta(description="forward and backward are captured and replayed: make_graphed_callables of torch, or te's"),
]
Pipelined = Annotated[
    bool, Meta(description="microbatches go in pairs: two forwards, then the backward of each, the earlier one first")
]
Autocast = Annotated[bool, Meta(description="x is fp32, and the forward runs under torch.autocast of the case's dtype")]
Optimizer = Annotated[
    Literal["none", "sgd", "adamw"], Meta(description="a step of torch.optim before each forward but the first")
]
Moved = Annotated[
    Literal["none", "to_dtype", "load_state_dict"],
    Meta(description="what becomes of the layer before the first microbatch: .to() from fp32, a state_dict loaded"),
]
Compile = Annotated[bool, Meta(description="the forward is compiled by torch.compile, with the backend aot_eager")]
Deterministic = Annotated[
    bool,
    Meta(
        description="determinism is asked for: of te by NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, of others by "
        "torch.use_deterministic_algorithms"
    ),
]
Repeat = Annotated[
    int, Meta(ge=1, le=1000, description="runs on the same data, from the build on; each is compared bit for bit")
]
