"""What must a provider build?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gradcheck_cli.records.case import Case

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Layer(Protocol):
    """A grouped linear layer: y_i = x_i w_i^T (+ b_i) for the rows x_i of each expert i.

    A layer computes; it never reads or reports gradients: `observe.py` does, the same way for every layer.
    Gradients are to arrive at `weights` and `biases`, the very parameters that a trainer would see. With
    `quantized_model_init` the weights are kept as bytes, where `compute/stored.py` looks for them.
    """

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, N, K), or G parameters (N, K)."""

    @property
    def biases(self) -> Sequence[torch.Tensor]:
        """G parameters (N,); none where the case has no bias."""

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N), both in the case's dtype, into the parameters."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) with T = sum(m_splits) -> y (T, N); raises whatever the candidate raises.

        Called once for each microbatch, in their order: what a call is given besides is for the layer to know. With
        `tied_weights` two calls come before the one backward of both.
        """

    def effective(self) -> dict[str, str | int]:
        """What this layer really is, under the names of the axes: read from the layer, not from the case.

        Called once after building and once after each forward, from which on it may know the path taken.
        """


class Delayed(Layer, Protocol):
    """What a layer must do besides where the case has `delay_wgrad_compute`."""

    def backward_dw(self) -> None:
        """Compute the weights' gradients of the earliest backward, or use in one, that left them open."""


class Switching(Layer, Protocol):
    """What a layer must do besides where the case has `inference=eval`."""

    def train(self, *, mode: bool) -> object:
        """Go to training, or to evaluation."""


class Moving(Layer, Protocol):
    """What a layer must do besides where the case has `moved`: what a torch.nn.Module does.

    With `moved=to_dtype` it is to be built in fp32, `built_dtype` in `records/due.py`.
    """

    def to(self, dtype: torch.dtype) -> object:
        """Bring all parameters to a dtype."""

    def state_dict(self) -> dict[str, Any]:
        """All parameters by their names, and whatever else belongs to them."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take the values of all parameters from a `state_dict()`."""


class Recomputing(Layer, Protocol):
    """What a layer must do besides where the case has `recompute=te` or `cuda_graph=te`, its library's own ways."""

    def checkpoint(
        self, call: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor], x: torch.Tensor, m_splits: tuple[int, ...]
    ) -> torch.Tensor:
        """call(x, m_splits), kept so that the backward runs it again."""

    def graphed(self, module: torch.nn.Module, sample: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
        """The module's forward and backward, captured with these sample inputs."""


class Chain(Layer, Protocol):
    """What a layer must do besides where it is a chain, api=op_mlp: fc2(probs * silu(a) * b), [a, b] = fc1(x).

    What Layer says of the weights is said of fc1's, (G, 2 N, K) or (2 N, K) each; a and b are the halves of each row.
    """

    @property
    def weights_fc2(self) -> Sequence[torch.Tensor]:
        """One packed parameter (G, K, N), or G parameters (K, N)."""

    def load_fc2(self, weight: torch.Tensor) -> None:
        """Copy weight (G, K, N), in the case's dtype, into the parameters of fc2."""

    def scale_by(self, probs: torch.Tensor) -> None:
        """Take the probabilities (T,) of the next forward's tokens; they ask for a gradient."""


Builder = Callable[[Case, torch.device], Layer]
