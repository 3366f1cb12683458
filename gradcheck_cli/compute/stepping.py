"""What does an optimizer make of the weights? A step of torch.optim, and the same of tensors that no layer has."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradcheck_cli.compute.attached import Parameters, packed
from gradcheck_cli.compute.found import Found, per_expert, read
from gradcheck_cli.compute.inputs import Inputs, exponents_of
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.reference import Reference, microbatch
from gradcheck_cli.compute.stored import elements
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen
from gradcheck_cli.records.observation import Fill
from gradcheck_cli.records.roles import part

# Of data of unit size, that every step is seen in the weights; integers are these times the units of their tensors.
RATES = {"sgd": 2.0**-5, "adamw": 2.0**-4}


class Stepping:
    """An optimizer of the weights that learn, as a trainer has it: of fp32 masters where wgrad is in main_grad.

    Megatron's distributed optimizer copies main_grad to the master's .grad, and the master to the parameter
    (megatron-core, core/optimizer/optimizer.py); without a fused wgrad it is the parameters that are stepped.
    """

    def __init__(self, case: Case, weights: list[torch.Tensor], inputs: Inputs, fill: Fill) -> None:
        self.case, self.weights = case, weights
        self.stood = inputs.weight.clone()
        self.learning = [i for i in range(len(weights)) if not frozen(case, i)]
        self.masters = [self._master(weights[i].detach()) if self._fused else weights[i] for i in self.learning]
        self.apart = [self._master(one) for one in self._parts(self.stood)]
        self.optimizers = [made(case, fill, own) for own in (self.masters, self.apart)]

    def step(self) -> Found:
        """One step of the weights from the gradients as they are; what is found in them, and what must be there."""
        grads = [self._gradient(self.weights[i]) for i in self.learning]
        for apart, grad in zip(self.apart, grads, strict=True):
            apart.grad = None if grad is None else grad.clone()
        for master, grad in zip(self.masters, grads, strict=True) if self._fused else ():
            master.grad = grad
        for optimizer in self.optimizers:
            optimizer.step()
        self._to_parameters()
        stood, self.stood = self.stood, self._whole(self.stood, self.apart)
        return replace(self.found(), before=self.stood, stood=stood)

    def found(self) -> Found:
        """The weights as a layer reads them, expert by expert."""
        device, own = self.stood.device, part(self.case, "wgrad")
        shape = self.stood.shape if packed(self.weights) else own
        held = [read(elements(weight).reshape(shape), device) for weight in self.weights]
        return Found("wgrad", "weight", per_expert(held, self.case.num_gemms, own))

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Go on from these values (G, N, K), in the case's dtype: written over what the step has made."""
        self.stood = values.clone()
        for own in (self.masters, self.apart):
            for one, value in zip(own, self._parts(values), strict=True):
                one.copy_(value)
        self._to_parameters()

    @torch.no_grad()
    def zero(self) -> None:
        """Zero the gradients of what learns: main_grad is zeroed, and .grad None, a dummy as well."""
        for i in self.learning:
            self.weights[i].grad = None
            main_grad = getattr(self.weights[i], "main_grad", None)
            if self._fused and isinstance(main_grad, torch.Tensor):
                main_grad.zero_()

    @property
    def _fused(self) -> bool:
        return self.case.fuse_wgrad_accumulation

    def _master(self, weight: torch.Tensor) -> torch.Tensor:
        own = weight.float() if self._fused else weight
        return own.detach().clone().requires_grad_()

    def _gradient(self, weight: torch.Tensor) -> torch.Tensor | None:
        grad = getattr(weight, "main_grad", None) if self._fused else weight.grad
        return grad.detach().float() if self._fused and grad is not None else grad

    def _parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Of (G, N, K) what each weight that learns has."""
        return [whole] if packed(self.weights) else [whole[i] for i in self.learning]

    def _whole(self, stood: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        whole = stood.clone()
        for place, value in zip(self._parts(whole), parts, strict=True):
            place.copy_(value.detach())
        return whole

    @torch.no_grad()
    def _to_parameters(self) -> None:
        for i, master in zip(self.learning, self.masters, strict=True) if self._fused else ():
            self.weights[i].copy_(master)


@torch.no_grad()
def turn(case: Case, held: Parameters, values: torch.Tensor | None) -> None:
    """Zero the gradients of the biases, and write these values (G, N) over those that learn."""
    for bias in held.biases:
        bias.grad = None
    if values is None or case.frozen_bias:
        return
    for bias, value in zip(held.biases, [values] if held.packed_bias else values, strict=True):
        bias.copy_(value)


def made(case: Case, fill: Fill, tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a case, without weight decay; one tensor after the other, so that each step is the same."""
    units = exponents_of(case, fill)
    weight, gradient = 2.0 ** units["weight"], 2.0 ** units["wgrad"]
    rate = RATES[case.optimizer] * weight
    if case.optimizer == "sgd":
        return torch.optim.SGD(tensors, lr=rate / gradient, foreach=False)
    # eps is as large as a gradient of unit size: fp16 holds it, and not the squares beside which 1e-8 counts.
    return torch.optim.AdamW(tensors, lr=rate, eps=gradient, weight_decay=0.0, foreach=False)


def after_step(case: Case, reference: Reference, k: int, weight: torch.Tensor) -> Reference:
    """The reference of random data once a step after microbatch k has made this weight (G, N, K) of the one before."""
    inputs = reference.inputs
    weights = (*inputs.weights[: k + 1], *[weight.to(DTYPES[case.dtype])] * (case.microbatches - k - 1))
    inputs = replace(inputs, weights=weights)
    later = (microbatch(case, inputs, j, reference.fill) for j in range(k + 1, case.microbatches))
    return replace(reference, inputs=inputs, roles=(*reference.roles[: k + 1], *later))
