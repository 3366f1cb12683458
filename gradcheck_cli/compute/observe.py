"""What did the candidate leave where? Load, prefill, forward, backward, then read every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.lent import Guarded, changed, guarded, lent
from gradcheck_cli.compute.poison import POISON, filled
from gradcheck_cli.compute.provider import DTYPES, Layer
from gradcheck_cli.compute.trial import on_trial
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Fill, Phase, Role

# Whose elements are measured; of others, and of sparse or meta tensors, shape and dtype tell enough.
READABLE = ("bfloat16", "float16", "float32", "float64")


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


class After(NamedTuple):
    """Everything found after one phase of one microbatch, and the names of what was only lent and is changed."""

    microbatch: int
    phase: Phase
    found: list[Found]
    disturbed: list[str]


@dataclass(frozen=True)
class Parameters:
    """The weights, one packed or one for each expert, and the biases."""

    weights: list[torch.Tensor]
    biases: list[torch.Tensor]

    @property
    def packed(self) -> bool:
        """Whether there is a single (G, N, K) weight."""
        return len(self.weights) == 1 and self.weights[0].dim() == 3


@dataclass(frozen=True)
class Attached:
    """The main_grad that a weight was given, and where its memory is: a tensor can be given other memory."""

    tensor: torch.Tensor
    at: int

    def replaced_in(self, weight: torch.Tensor) -> bool:
        """Whether the weight's main_grad is another tensor by now, or this one with other memory."""
        found = getattr(weight, "main_grad", None)
        return found is not self.tensor or self.tensor.data_ptr() != self.at


def observe(case: Case, layer: Layer, inputs: Inputs, fill: Fill) -> Iterator[After]:
    """Run all microbatches; after each forward and backward yield what is there.

    The weights are loaded first, and every weight gets a prefilled fp32 `main_grad` and `grad_added_to_main_grad =
    False`, fused or not. Nothing is cleared between microbatches. Ends early at an output that no gradient fits.
    Raises CandidateRaised, also where its parameters and buffers cannot be read.
    """
    device = inputs.weight.device

    def trial(during: str) -> AbstractContextManager[None]:
        return on_trial(f"{during}, {fill} data", device)

    with trial("loading of the weights"):
        # Copies: the originals serve the reference, and every other case on the same data.
        layer.load(inputs.weight.clone(), None if inputs.bias is None else inputs.bias.clone())
    main_grad = guarded("main_grad", inputs.prefill)
    with trial("reading the parameters after loading"):
        # An optimizer holds these from here on; gradients that reach others put in their place later are lost to it.
        held = held_parameters(case, layer)
        attached = attach_main_grad(held.weights, main_grad.tensor)
    for k in range(case.microbatches):
        splits, x = case.splits(k), guarded("x", inputs.x[k])
        x.tensor.requires_grad_()
        with trial(f"forward of microbatch {k}"), filled(POISON[fill], device):
            y = _a_tensor(layer.forward(x.tensor, splits))
        shape = (sum(splits), case.out_features)
        with trial(f"reading the output of microbatch {k}"):
            fprop, fits = _rows("fprop", "output", y, splits, shape, device), tuple(y.shape) == shape
        yield After(k, "forward", [snapshot(fprop)], [])
        if not fits:
            return
        given = grad_output(case, inputs.grad_output[k])
        with trial(f"backward of microbatch {k}"), filled(POISON[fill], device):
            y.backward(given.tensor)
        with trial(f"reading the gradients after the backward of microbatch {k}"):
            dgrad = _rows("dgrad", "input.grad", x.tensor.grad, splits, tuple(x.tensor.shape), device)
            found = [dgrad, *_parameters(case, held, attached, device)]
            pairs = lent(inputs, k, held.weights, held.biases, [main_grad, x, given])
        yield After(k, "backward", [snapshot(one) for one in found], changed(pairs))


def held_parameters(case: Case, layer: Layer) -> Parameters:
    """The parameters as a trainer takes hold of them; ValueError where they are not one for each expert, or packed."""
    held = Parameters(list(layer.weights), list(layer.biases))
    experts = case.num_gemms
    if not held.packed and len(held.weights) != experts:
        raise ValueError(f"expected {experts} weights or a packed one; after loading there are {len(held.weights)}")
    if case.bias and len(held.biases) != experts:
        raise ValueError(f"expected {experts} biases; after loading there are {len(held.biases)}")
    return held


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


def grad_output(case: Case, values: torch.Tensor) -> Guarded:
    """The incoming gradient: its own storage, or the scalar one that `.sum().backward()` expands with strides 0."""
    if case.grad_output == "expanded":
        scalar = guarded("grad_output", torch.ones((), dtype=values.dtype, device=values.device))
        return replace(scalar, tensor=scalar.tensor.expand(values.shape))
    return guarded("grad_output", values)


def attach_main_grad(weights: list[torch.Tensor], buffer: torch.Tensor) -> list[Attached]:
    """Give each weight a main_grad: views of one contiguous (G, N, K) buffer, as a data-parallel wrapper does."""
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


def _parameters(case: Case, held: Parameters, attached: list[Attached], device: torch.device) -> list[Found]:
    part = (case.out_features, case.in_features)
    grads = [_held(weight.grad, device) for weight in held.weights]
    main_grads = [
        _held(
            getattr(weight, "main_grad", None),
            device,
            added_flag=_truth(getattr(weight, "grad_added_to_main_grad", None)),
            replaced=own.replaced_in(weight),
        )
        for weight, own in zip(held.weights, attached, strict=True)
    ]
    found = [
        Found("wgrad", "grad", _per_expert(grads, case.num_gemms, part)),
        Found("wgrad", "main_grad", _per_expert(main_grads, case.num_gemms, part)),
    ]
    if case.bias:
        grads = [_held(bias.grad, device) for bias in held.biases]
        found.append(Found("bgrad", "grad", _per_expert(grads, case.num_gemms, (case.out_features,))))
    return found


def _truth(flag: object) -> bool | None:
    """A flag as a wrapper reads it: `if param.grad_added_to_main_grad`; None where there is none."""
    return None if flag is None else bool(flag)


def _held(tensor: object, device: torch.device, *, added_flag: bool | None = None, replaced: bool = False) -> Held:
    """A whole buffer as it is, its elements only where they can be read like any other's."""
    if not isinstance(tensor, torch.Tensor):
        return Held(added_flag=added_flag, replaced=replaced)
    said = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        said += f" ({tensor.layout})".replace("torch.", "")
    if tensor.device.type != device.type:
        said += f" on {tensor.device}"
    return Held(
        tensor=tensor.detach() if said in READABLE else None,
        present=True,
        shape=tuple(tensor.shape),
        dtype=said,
        added_flag=added_flag,
        replaced=replaced,
    )


def snapshot(found: Found) -> Found:
    """The same with its elements copied, since buffers live on."""
    copies = [None if one.tensor is None else one.tensor.clone() for one in found.experts]
    return replace(found, experts=[replace(one, tensor=copy) for one, copy in zip(found.experts, copies, strict=True)])


def _per_expert(buffers: list[Held], experts: int, part: tuple[int, ...]) -> list[Held]:
    """One packed (G, ...) buffer, or one for each expert, as one for each expert."""
    whole = buffers[0]
    if len(buffers) == experts and whole.shape != (1, *part):
        return [one if one.shape == part else replace(one, tensor=None) for one in buffers]
    fits = whole.tensor is not None and whole.shape == (experts, *part)
    parts = list(whole.tensor) if whole.tensor is not None and fits else [None] * experts
    return [replace(whole, tensor=tensor) for tensor in parts]


def _rows(
    role: Role,
    buffer: Buffer,
    tensor: torch.Tensor | None,
    splits: tuple[int, ...],
    shape: tuple[int, ...],
    device: torch.device,
) -> Found:
    """The rows of each expert of an output or an input's gradient of the given shape."""
    whole = _held(tensor, device)
    fits = whole.tensor is not None and whole.shape == shape
    parts = list(whole.tensor.split(list(splits))) if whole.tensor is not None and fits else [None] * len(splits)
    return Found(role, buffer, [replace(whole, tensor=tensor) for tensor in parts])
