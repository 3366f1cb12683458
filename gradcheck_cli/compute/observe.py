"""What did the candidate leave where? Load, prefill, forward, backward, then read every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch

from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.lent import ADDED_TO_BYTE, GUARD_BYTE, Guarded, Loans, Placed, guard_byte, guarded, placed
from gradcheck_cli.compute.poison import POISON, filled
from gradcheck_cli.compute.provider import DTYPES, Delayed, Layer
from gradcheck_cli.compute.trial import a_tensor, on_trial, parameters_of
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen, overwriting
from gradcheck_cli.records.observation import DATA, Buffer, Fill, Phase, Role

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
    """One role in one buffer after one phase, expert by expert.

    `before` is what a buffer held before the phase, where it must still hold that, bit for bit: (G, N, K).
    """

    role: Role
    buffer: Buffer
    experts: list[Held]
    before: torch.Tensor | None = None


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


def observe(case: Case, layer: Layer, inputs: Inputs, fill: Fill) -> Iterator[After]:
    """Run all microbatches; after each forward, backward and, where it is delayed, backward_dw yield what is there.

    The weights are loaded first, and get what the case says of main_grad, fused or not. Nothing is cleared between
    microbatches. Ends early at an output that no gradient fits.
    Raises CandidateRaised, also where its parameters and buffers cannot be read.
    """
    device = inputs.weight.device
    prefill = inputs.prefill.to(DTYPES[case.main_grad_dtype])

    def trial(during: str) -> AbstractContextManager[None]:
        return on_trial(f"{during}, {DATA[fill]}", device)

    with trial("loading of the weights"):
        # Copies: the originals serve the reference, and every other case on the same data.
        layer.load(inputs.weight.clone(), None if inputs.bias is None else inputs.bias.clone())
    byte, main_grad = guard_byte(fill), guarded("main_grad", prefill, ADDED_TO_BYTE)
    with trial("reading the parameters after loading"):
        # An optimizer holds these from here on; gradients that reach others put in their place later are lost to it.
        held = held_parameters(case, layer)
        freeze(case, held)
        attached = attach_main_grad(case, held.weights, main_grad.tensor)
        loans = lent(case, layer, inputs, held, attached, main_grad)
    for k in range(case.microbatches):
        splits, x = case.splits(k), guarded("x", inputs.x[k], byte)
        before = main_grad.tensor.clone() if case.delay_wgrad_compute else None
        # No leaf, as the output of a layer before is none: a gradient put into the .grad of this one is lost.
        ahead = x.tensor.requires_grad_(not case.frozen_input).view_as(x.tensor)
        loans.lend(x, inputs.x[k], ahead, k)
        with trial(f"forward of microbatch {k}"), filled(POISON[fill], device):
            y = a_tensor(layer.forward(ahead, splits))
        shape = (sum(splits), case.out_features)
        with trial(f"reading the output of microbatch {k}"):
            fprop, fits = _rows("fprop", "output", y, splits, shape, device), tuple(y.shape) == shape
            seen = loans.seen()
        yield After(k, "forward", [snapshot(fprop)], loans.changed(seen, k))
        if not fits:
            return
        given = grad_output(case, inputs.grad_output[k], byte)
        loans.lend(given, inputs.grad_output[k], given.tensor, k)
        with trial(f"backward of microbatch {k}"), filled(POISON[fill], device):
            y.backward(given.tensor)
        with trial(f"reading the gradients after the backward of microbatch {k}"):
            dgrad = _rows("dgrad", "input.grad", x.tensor.grad, splits, tuple(x.tensor.shape), device)
            parameters = _parameters(case, held, attached, device)
            if before is not None:  # of these only main_grad must be as it was
                parameters = [replace(one, before=before) for one in parameters if one.buffer == "main_grad"]
            seen = loans.seen()
            loans.keep(x.tensor, k)
        yield After(k, "backward", [snapshot(one) for one in (dgrad, *parameters)], loans.changed(seen, k))
        if before is None:
            continue
        with trial(f"backward_dw of microbatch {k}"), filled(POISON[fill], device):
            cast("Delayed", layer).backward_dw()
        with trial(f"reading the gradients after the backward_dw of microbatch {k}"):
            parameters, seen = _parameters(case, held, attached, device), loans.seen()
        yield After(k, "backward_dw", [snapshot(one) for one in parameters], loans.changed(seen, k))


def held_parameters(case: Case, layer: Layer) -> Parameters:
    """The parameters as a trainer takes hold of them; ValueError where they are not one for each expert, or packed."""
    held = Parameters(*parameters_of(layer))
    experts = case.num_gemms
    if not held.packed and len(held.weights) != experts:
        raise ValueError(f"expected {experts} weights or a packed one; after loading there are {len(held.weights)}")
    if case.bias and len(held.biases) != experts:
        raise ValueError(f"expected {experts} biases; after loading there are {len(held.biases)}")
    return held


def layout(layer: Layer) -> dict[str, str | int]:
    """The parameters as they are, under the names of the axes, whatever the layer says of itself."""
    (weights, biases), names = parameters_of(layer), {dtype: name for name, dtype in DTYPES.items()}
    dtypes = dict.fromkeys(names.get(one.dtype, str(one.dtype)) for one in (*weights, *biases))
    first = weights[0]
    packed = len(weights) == 1 and first.dim() == 3
    return {
        "single_grouped_weight": int(packed),
        "dtype": " and ".join(dtypes),
        "bias": int(len(biases) > 0),
        "num_gemms": first.shape[0] if packed else len(weights),
        "in_features": first.shape[-1],
        "out_features": first.shape[-2],
    }


def grad_output(case: Case, values: torch.Tensor, byte: int = GUARD_BYTE) -> Guarded:
    """The incoming gradient: its own storage, or the scalar one that `.sum().backward()` expands with strides 0."""
    if case.grad_output == "expanded":
        scalar = guarded("grad_output", torch.ones((), dtype=values.dtype, device=values.device), byte)
        return replace(scalar, tensor=scalar.tensor.expand(values.shape))
    return guarded("grad_output", values, byte)


def freeze(case: Case, held: Parameters) -> None:
    """Take from the parameters that the case freezes their requires_grad, as a trainer does before the first step."""
    experts = range(case.num_gemms)
    asleep = [frozen(case, 0)] if held.packed else [frozen(case, i) for i in experts]
    for weight, sleeps in zip(held.weights, asleep, strict=True):
        if sleeps:
            weight.requires_grad = False
    for bias in held.biases if case.frozen_bias else ():
        bias.requires_grad = False


def attach_main_grad(case: Case, weights: list[torch.Tensor], buffer: torch.Tensor) -> list[Placed]:
    """Give each weight a main_grad: views of one contiguous (G, N, K) buffer, as a data-parallel wrapper does.

    With it go the attributes that tell a layer what to do with it; where the case has no main_grad, nothing does.
    """
    if case.main_grad == "absent":
        return []
    packed = len(weights) == 1 and weights[0].dim() == 3
    attached = [buffer] if packed else list(buffer)
    for i, (weight, main_grad) in enumerate(zip(weights, attached, strict=True)):
        said: dict[str, object] = {"main_grad": main_grad}
        if case.grad_added_to_main_grad == "attached":
            said["grad_added_to_main_grad"] = False
        if overwriting(case, i):
            said["overwrite_main_grad"] = True
        if case.zero_out_wgrad:
            said["zero_out_wgrad"] = True
        for name, value in said.items():
            setattr(weight, name, value)
    return _named("main_grad", attached, packed=packed)


def lent(
    case: Case, layer: Layer, inputs: Inputs, held: Parameters, attached: list[Placed], main_grad: Guarded
) -> Loans:
    """What a candidate holds before its first microbatch."""
    weights, biases = _named("weight", held.weights, packed=held.packed), _named("bias", held.biases, packed=False)
    due = biases if case.fuse_wgrad_accumulation else [*weights, *biases]
    asleep = {one.name for i, one in enumerate(weights) if frozen(case, i)}
    asleep |= {one.name for one in biases if case.frozen_bias}
    return Loans(inputs, weights, biases, attached, main_grad, due, lambda: parameters_of(layer), asleep)


def _named(name: str, tensors: list[torch.Tensor], *, packed: bool) -> list[Placed]:
    return [placed(name if packed else f"{name}[{i}]", tensor) for i, tensor in enumerate(tensors)]


def _parameters(case: Case, held: Parameters, attached: list[Placed], device: torch.device) -> list[Found]:
    part = (case.out_features, case.in_features)
    grads = [_held(weight.grad, device) for weight in held.weights]
    owned: list[Placed | None] = [*attached] or [None] * len(held.weights)
    main_grads = [
        _held(
            getattr(weight, "main_grad", None),
            device,
            added_flag=_truth(getattr(weight, "grad_added_to_main_grad", None)),
            replaced=own is not None and own.replaced_in(weight),
        )
        for weight, own in zip(held.weights, owned, strict=True)
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
