"""What did the candidate leave where? Load, prefill, forward, backward, then read every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch

from gradcheck_cli.compute.attached import Parameters, attach_main_grad, freeze, held_parameters, named
from gradcheck_cli.compute.handed import grad_output_of, x_of
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.lent import ADDED_TO_BYTE, Guarded, Loans, Placed, guard_byte, guarded
from gradcheck_cli.compute.poison import POISON, filled
from gradcheck_cli.compute.provider import DTYPES, Delayed, Layer
from gradcheck_cli.compute.trial import a_tensor, on_trial, parameters_of
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen, joined, steps_of
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


def observe(case: Case, layer: Layer, inputs: Inputs, fill: Fill) -> Iterator[After]:
    """Run all microbatches; after each forward, backward and, where it is delayed, backward_dw yield what is there.

    The weights are loaded first, and get what the case says of main_grad, fused or not. Nothing is cleared between
    microbatches. Of a backward through two, all but x.grad is told with the last. Ends early at an output that no
    gradient fits. Raises CandidateRaised, also where its parameters and buffers cannot be read.
    """
    trainer = Trainer(case, layer, inputs, fill)
    for step in steps_of(case):
        for k in step:
            yield trainer.forward(k)
            if not trainer.fits:
                return
        yield from trainer.backward(step)
        if case.delay_wgrad_compute:
            yield trainer.backward_dw(step)


class Trainer:
    """One layer and its parameters from the loading of the weights on; each step says what it left where."""

    def __init__(self, case: Case, layer: Layer, inputs: Inputs, fill: Fill) -> None:
        self.case, self.layer, self.inputs, self.fill = case, layer, inputs, fill
        self.device = inputs.weight.device
        self.byte = guard_byte(fill)
        self.main_grad = guarded("main_grad", inputs.prefill.to(DTYPES[case.main_grad_dtype]), ADDED_TO_BYTE)
        with self._trial("loading of the weights"):
            # Copies: the originals serve the reference, and every other case on the same data.
            layer.load(inputs.weight.clone(), None if inputs.bias is None else inputs.bias.clone())
        with self._trial("reading the parameters after loading"):
            # An optimizer holds these from here on; gradients that reach others put in their place are lost to it.
            self.held = held_parameters(case, layer)
            freeze(case, self.held)
            self.attached = attach_main_grad(case, self.held.weights, self.main_grad.tensor)
            self.loans = lent(case, layer, inputs, self.held, self.attached, self.main_grad)
        self.before: torch.Tensor | None = None
        self.x: dict[int, torch.Tensor] = {}
        self.y: dict[int, torch.Tensor] = {}

    def forward(self, k: int) -> After:
        """The output of microbatch k."""
        case, splits = self.case, self.case.splits(k)
        x, whole = x_of(case, self.inputs.x[k], self.byte)
        # What a wgrad that is left to backward_dw must leave as it is.
        if case.delay_wgrad_compute and not self.y:
            self.before = self.main_grad.tensor.clone()
        # No leaf, as the output of a layer before is none: a gradient put into the .grad of this one is lost.
        ahead = x.tensor.requires_grad_(not case.frozen_input).view_as(x.tensor)
        self.loans.lend(x, whole, ahead, k)
        with self._trial(f"forward of microbatch {k}"), filled(POISON[self.fill], self.device):
            y = a_tensor(self.layer.forward(ahead, splits))
        self.x[k], self.y[k] = x.tensor, y
        shape = (case.rows(k), case.out_features)
        with self._trial(f"reading the output of microbatch {k}"):
            fprop, self.fits = _rows("fprop", "output", y, splits, shape, self.device), tuple(y.shape) == shape
            seen = self.loans.seen()
        return After(k, "forward", [snapshot(fprop)], self.loans.changed(seen, k))

    def backward(self, step: tuple[int, ...]) -> list[After]:
        """The gradients of each x and, unless they are left to backward_dw, of the parameters."""
        case, grads, said = self.case, [], f"backward of microbatch {joined(step)}"
        xs = [(k, self.x[k]) for k in step]
        for k in step:
            given, whole = grad_output_of(case, self.inputs.grad_output[k], self.byte)
            self.loans.lend(given, whole, given.tensor, k)
            grads.append(given.tensor)
        with self._trial(said), filled(POISON[self.fill], self.device):
            torch.autograd.backward([self.y.pop(k) for k in step], grads)
        with self._trial(f"reading the gradients after the {said}"):
            found = {k: [_rows("dgrad", "input.grad", x.grad, case.splits(k), x.shape, self.device)] for k, x in xs}
            parameters = _parameters(case, self.held, self.attached, self.device)
            if self.before is not None:
                parameters = [replace(one, before=self.before) for one in parameters if one.buffer == "main_grad"]
            found[step[-1]] += parameters
            seen = self.loans.seen()
            for k, x in xs:
                self.loans.keep(x, k)
        changed = {step[-1]: self.loans.changed(seen, step[-1])}
        return [After(k, "backward", [snapshot(one) for one in found[k]], changed.get(k, [])) for k in step]

    def backward_dw(self, step: tuple[int, ...]) -> After:
        """The gradients of the parameters that the backward left open, use by use."""
        said, last = f"backward_dw of microbatch {joined(step)}", step[-1]
        with self._trial(said), filled(POISON[self.fill], self.device):
            for _ in step:
                cast("Delayed", self.layer).backward_dw()
        with self._trial(f"reading the gradients after the {said}"):
            parameters, seen = _parameters(self.case, self.held, self.attached, self.device), self.loans.seen()
        return After(last, "backward_dw", [snapshot(one) for one in parameters], self.loans.changed(seen, last))

    def _trial(self, during: str) -> AbstractContextManager[None]:
        return on_trial(f"{during}, {DATA[self.fill]}", self.device)


def lent(
    case: Case, layer: Layer, inputs: Inputs, held: Parameters, attached: list[Placed], main_grad: Guarded
) -> Loans:
    """What a candidate holds before its first microbatch."""
    weights, biases = (
        named("weight", held.weights, packed=held.packed),
        named("bias", held.biases, packed=held.packed_bias),
    )
    due = biases if case.fuse_wgrad_accumulation else [*weights, *biases]
    asleep = {one.name for i, one in enumerate(weights) if frozen(case, i)}
    asleep |= {one.name for one in biases if case.frozen_bias}
    return Loans(inputs, weights, biases, attached, main_grad, due, lambda: parameters_of(layer), asleep)


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
    """The rows of each expert of an output or an input's gradient of the given shape; a tail is nobody's."""
    whole = _held(tensor, device)
    fits = whole.tensor is not None and whole.shape == shape
    own = whole.tensor[: sum(splits)] if whole.tensor is not None and fits else None
    parts = list(own.split(list(splits))) if own is not None else [None] * len(splits)
    return Found(role, buffer, [replace(whole, tensor=tensor) for tensor in parts])
