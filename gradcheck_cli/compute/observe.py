"""What did the candidate leave where? Prefill, forward, backward, then read every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.provider import Layer
from gradcheck_cli.compute.trial import on_trial
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Phase, Role


@dataclass(frozen=True)
class Found:
    """One role in one buffer after one phase: a tensor per expert, None where there is none.

    fprop and dgrad have rows (T_i, N or K) per expert, wgrad (N, K), bgrad (N,). `shape` and `dtype` are those of the
    whole buffer as the candidate left it.
    """

    role: Role
    buffer: Buffer
    experts: list[torch.Tensor | None]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    added_flag: bool | None = None
    replaced: bool = False


def observe(case: Case, layer: Layer, inputs: Inputs, fill: str) -> Iterator[tuple[int, Phase, list[Found]]]:
    """Run all microbatches; after each forward and backward yield (microbatch, phase, everything found).

    Every weight gets a prefilled fp32 `main_grad` and `grad_added_to_main_grad = False`, fused or not, before the
    first forward. Nothing is cleared between microbatches. Raises CandidateRaised.
    """
    device = inputs.weight.device
    attached = attach_main_grad(layer, inputs.prefill)
    for k in range(case.microbatches):
        splits = case.splits(k)
        x = inputs.x[k].clone().requires_grad_()
        with on_trial(f"forward of microbatch {k}, {fill} data", device):
            y = layer.forward(x, splits)
        yield k, "forward", [_rows("fprop", "output", y.detach(), splits)]
        with on_trial(f"backward of microbatch {k}, {fill} data", device):
            y.backward(grad_output(case, inputs.grad_output[k], y))
        yield k, "backward", [_rows("dgrad", "input.grad", x.grad, splits), *_parameters(case, layer, attached)]


def grad_output(case: Case, values: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The incoming gradient: its own storage, or the scalar one that `.sum().backward()` expands with strides 0."""
    if case.grad_output == "expanded":
        return torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape)
    return values.clone()


def attach_main_grad(layer: Layer, prefill: torch.Tensor) -> list[torch.Tensor]:
    """Give each weight a main_grad: views of one contiguous (G, N, K) buffer, as a data-parallel wrapper does."""
    buffer = prefill.clone()
    packed = len(layer.weights) == 1 and layer.weights[0].dim() == 3
    attached = [buffer] if packed else list(buffer)
    for weight, main_grad in zip(layer.weights, attached, strict=True):
        weight.main_grad = main_grad  # type: ignore[attr-defined]
        weight.grad_added_to_main_grad = False  # type: ignore[attr-defined]
    return attached


def _parameters(case: Case, layer: Layer, attached: list[torch.Tensor]) -> list[Found]:
    weights = list(layer.weights)
    found = [
        _per_expert("wgrad", "grad", [weight.grad for weight in weights], case.num_gemms),
        _per_expert(
            "wgrad",
            "main_grad",
            [getattr(weight, "main_grad", None) for weight in weights],
            case.num_gemms,
            flags=[getattr(weight, "grad_added_to_main_grad", None) for weight in weights],
            replaced=any(getattr(w, "main_grad", None) is not a for w, a in zip(weights, attached, strict=True)),
        ),
    ]
    if case.bias:
        found.append(_per_expert("bgrad", "grad", [bias.grad for bias in layer.biases], case.num_gemms))
    return found


def _per_expert(
    role: Role,
    buffer: Buffer,
    tensors: list[torch.Tensor | None],
    experts: int,
    *,
    flags: list[bool | None] | None = None,
    replaced: bool = False,
) -> Found:
    """A packed (G, ...) tensor or one tensor per expert, as one tensor per expert; snapshots, since buffers live on."""
    present = [tensor for tensor in tensors if tensor is not None]
    one = present[0] if present else None
    packed = len(tensors) == 1 and (experts > 1 or (one is not None and one.dim() == (2 if role == "bgrad" else 3)))
    copies: list[torch.Tensor | None] = [None if t is None else t.detach().clone() for t in tensors]
    if packed:
        whole = copies[0]
        copies = [None] * experts if whole is None else list(whole.view(experts, -1, whole.shape[-1]))
    return Found(
        role=role,
        buffer=buffer,
        experts=copies,
        shape=() if one is None else tuple(one.shape),
        dtype="" if one is None else str(one.dtype).removeprefix("torch."),
        # All must agree; where they do not, the flag is as good as unset.
        added_flag=None if flags is None or None in flags else all(flags),
        replaced=replaced,
    )


def _rows(role: Role, buffer: Buffer, tensor: torch.Tensor | None, splits: tuple[int, ...]) -> Found:
    if tensor is None:
        return Found(role, buffer, [None] * len(splits))
    fits = tensor.dim() == 2 and tensor.shape[0] == sum(splits)
    parts: list[torch.Tensor | None] = [None] * len(splits)
    if fits:
        parts = list(tensor.detach().clone().split(list(splits)))
    return Found(role, buffer, parts, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
