"""What must be known of a layer to build and call it in a few lines? Its making, whoever makes it."""

from __future__ import annotations

from typing import NamedTuple

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
# Of a chain each microbatch has its own; they are a leaf, whose gradient is pgrad.
PROBS = "probs = torch.rand(sum(splits), dtype=DTYPE, device=DEVICE).requires_grad_()"


class Making(NamedTuple):
    """Lines of Python: what stands before the import of torch, the imports, and how to make and call the layer.

    `build` draws the parameters where the layer does not, so that nothing printed is chance, and ends with `weights`
    and `biases`, lists of parameters, and of a chain `weights_fc2`; `each` comes before each call, which is an
    expression of x and splits, and of k where a layer is told which microbatch is the first; `load` writes w (G, N, K)
    into them, and `bias` is what of a bias b can be filled; `between` stands between a forward and its backward.
    """

    variables: dict[str, str]
    imports: list[str]
    build: list[str]
    call: str
    load: list[str]
    bias: str = "b"
    backward_dw: str = "layer.backward_dw()"
    hook: bool = False  # whether main_grad gets what was rounded to the dtype before, as a hook adds it
    each: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def load_each() -> list[str]:
    """How w is written into one parameter for each expert."""
    return ["for parameter, value in zip(weights, w):", "    parameter.copy_(value)"]
