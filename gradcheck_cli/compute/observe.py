"""What did the candidate leave where? Load, prefill, forward, backward, then read every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.provider import DTYPES, Layer
from gradcheck_cli.compute.trial import on_trial
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Phase, Role


@dataclass(frozen=True)
class Held:
    """One expert's part of a buffer: rows (T_i, N or K) of fprop and dgrad, (N, K) of wgrad, (N,) of bgrad.

    `tensor` is None where there is no buffer, or one that cannot be cut into the experts' parts. `shape` and `dtype`
    are those of the whole buffer as the candidate left it.
    """

    tensor: torch.Tensor | None = None
    present: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    added_flag: bool | None = None
    replaced: bool = False


@dataclass(frozen=True)
class Found:
    """One role in one buffer after one phase, expert by expert."""

    role: Role
    buffer: Buffer
    experts: list[Held]


@dataclass(frozen=True)
class Attached:
    """The main_grad that a weight was given, and where its memory is: a tensor can be given other memory."""

    tensor: torch.Tensor
    at: int

    def replaced_in(self, weight: torch.Tensor) -> bool:
        """Whether the weight's main_grad is another tensor by now, or this one with other memory."""
        found = getattr(weight, "main_grad", None)
        return found is not self.tensor or self.tensor.data_ptr() != self.at


def observe(case: Case, layer: Layer, inputs: Inputs, fill: str) -> Iterator[tuple[int, Phase, list[Found]]]:
    """Run all microbatches; after each forward and backward yield (microbatch, phase, everything found).

    The weights are loaded first, and every weight gets a prefilled fp32 `main_grad` and `grad_added_to_main_grad =
    False`, fused or not. Nothing is cleared between microbatches. Ends early at an output that no gradient fits.
    Raises CandidateRaised.
    """
    device = inputs.weight.device
    with on_trial(f"loading of the weights, {fill} data", device):
        # Copies: the originals serve the reference, and every other case on the same data.
        layer.load(inputs.weight.clone(), None if inputs.bias is None else inputs.bias.clone())
    # An optimizer holds these from here on; gradients that reach others put in their place later are lost to it.
    weights, biases = list(layer.weights), list(layer.biases)
    attached = attach_main_grad(weights, inputs.prefill)
    for k in range(case.microbatches):
        splits = case.splits(k)
        x = inputs.x[k].clone().requires_grad_()
        with on_trial(f"forward of microbatch {k}, {fill} data", device):
            y = _a_tensor(layer.forward(x, splits))
        shape = (sum(splits), case.out_features)
        yield k, "forward", [_rows("fprop", "output", y, splits, shape)]
        if tuple(y.shape) != shape:
            return
        with on_trial(f"backward of microbatch {k}, {fill} data", device):
            y.backward(grad_output(case, inputs.grad_output[k], y))
        dgrad = _rows("dgrad", "input.grad", x.grad, splits, tuple(x.shape))
        yield k, "backward", [dgrad, *_parameters(case, weights, biases, attached)]


def layout(layer: Layer) -> dict[str, str | int]:
    """The parameters as they are, under the names of the axes, whatever the layer says of itself."""
    weights, names = list(layer.weights), {dtype: name for name, dtype in DTYPES.items()}
    dtypes = dict.fromkeys(names.get(one.dtype, str(one.dtype)) for one in (*weights, *layer.biases))
    first = weights[0]
    packed = len(weights) == 1 and first.dim() == 3
    return {
        "single_grouped_weight": int(packed),
        "dtype": " and ".join(dtypes),
        "bias": int(len(layer.biases) > 0),
        "num_gemms": first.shape[0] if packed else len(weights),
        "in_features": first.shape[-1],
        "out_features": first.shape[-2],
    }


def grad_output(case: Case, values: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The incoming gradient: its own storage, or the scalar one that `.sum().backward()` expands with strides 0."""
    if case.grad_output == "expanded":
        return torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape)
    return values.clone()


def attach_main_grad(weights: list[torch.Tensor], prefill: torch.Tensor) -> list[Attached]:
    """Give each weight a main_grad: views of one contiguous (G, N, K) buffer, as a data-parallel wrapper does."""
    buffer = prefill.clone()
    packed = len(weights) == 1 and weights[0].dim() == 3
    attached = [buffer] if packed else list(buffer)
    for weight, main_grad in zip(weights, attached, strict=True):
        weight.main_grad = main_grad  # type: ignore[attr-defined]
        weight.grad_added_to_main_grad = False  # type: ignore[attr-defined]
    return [Attached(tensor, tensor.data_ptr()) for tensor in attached]


def _a_tensor(output: object) -> torch.Tensor:
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"expected the output as one tensor; forward returned {type(output).__name__}")
    return output


def _parameters(
    case: Case, weights: list[torch.Tensor], biases: list[torch.Tensor], attached: list[Attached]
) -> list[Found]:
    part = (case.out_features, case.in_features)
    grads = [_held(weight.grad) for weight in weights]
    main_grads = [
        _held(
            getattr(weight, "main_grad", None),
            added_flag=_truth(getattr(weight, "grad_added_to_main_grad", None)),
            replaced=own.replaced_in(weight),
        )
        for weight, own in zip(weights, attached, strict=True)
    ]
    found = [
        Found("wgrad", "grad", _per_expert(grads, case.num_gemms, part)),
        Found("wgrad", "main_grad", _per_expert(main_grads, case.num_gemms, part)),
    ]
    if case.bias:
        grads = [_held(bias.grad) for bias in biases]
        found.append(Found("bgrad", "grad", _per_expert(grads, case.num_gemms, (case.out_features,))))
    return found


def _truth(flag: object) -> bool | None:
    """A flag as a wrapper reads it: `if param.grad_added_to_main_grad`; None where there is none."""
    return None if flag is None else bool(flag)


def _held(tensor: object, *, added_flag: bool | None = None, replaced: bool = False) -> Held:
    """A whole buffer: a snapshot, since buffers live on."""
    if not isinstance(tensor, torch.Tensor):
        return Held(added_flag=added_flag, replaced=replaced)
    return Held(
        tensor=tensor.detach().clone(),
        present=True,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        added_flag=added_flag,
        replaced=replaced,
    )


def _per_expert(buffers: list[Held], experts: int, part: tuple[int, ...]) -> list[Held]:
    """One packed (G, ...) buffer, or one for each expert, as one for each expert."""
    whole = buffers[0]
    if len(buffers) == experts and whole.shape != (1, *part):
        return [one if one.shape == part else replace(one, tensor=None) for one in buffers]
    fits = whole.tensor is not None and whole.shape == (experts, *part)
    parts = list(whole.tensor) if whole.tensor is not None and fits else [None] * experts
    return [replace(whole, tensor=tensor) for tensor in parts]


def _rows(
    role: Role, buffer: Buffer, tensor: torch.Tensor | None, splits: tuple[int, ...], shape: tuple[int, ...]
) -> Found:
    """The rows of each expert of an output or an input's gradient of the given shape."""
    whole = _held(tensor)
    fits = whole.tensor is not None and whole.shape == shape
    parts = list(whole.tensor.split(list(splits))) if whole.tensor is not None and fits else [None] * len(splits)
    return Found(role, buffer, [replace(whole, tensor=tensor) for tensor in parts])
