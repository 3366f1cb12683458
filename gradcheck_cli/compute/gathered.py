"""Which gradients do the parameters of a layer hold, in which buffers?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradcheck_cli.compute.attached import Hooks, Parameters, named
from gradcheck_cli.compute.equipment import Equipment
from gradcheck_cli.compute.found import Found, per_expert, read, truth
from gradcheck_cli.compute.lent import Placed, Seen
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import part, weights_of


def parameters_found(case: Case, own: Equipment, device: torch.device) -> list[Found]:
    """The gradients of all parameters, in both buffers of each weight."""
    found = []
    for role in weights_of(case):
        found += _wgrad(case, role, own.held.of(role), own.attached[role], own.hooks[role], device)
    if case.bias:
        grads = [read(bias.grad, device) for bias in own.held.biases]
        found.append(Found("bgrad", "grad", per_expert(grads, case.num_gemms, part(case, "bgrad"))))
    return found


def left(held: Parameters) -> list[torch.Tensor]:
    """The tensors that the parameters have as their .grad by now."""
    grads = [one.grad for one in (*held.weights, *held.biases, *held.weights_fc2)]
    return [grad for grad in grads if grad is not None and grad.layout is torch.strided]


@dataclass(frozen=True)
class Gradients:
    """Both buffers of every parameter, as they were before something that no gradient may come from."""

    kept: list[tuple[str, torch.Tensor, str, torch.Tensor | None]]

    @classmethod
    def of(cls, held: Parameters) -> Gradients:
        """As they are now."""
        groups = {"weight": held.weights, "bias": held.biases, "weight_fc2": held.weights_fc2}
        kept = []
        for one in (one for name, several in groups.items() for one in named(name, several)):
            for attribute in ("grad", "main_grad"):
                found = _tensor(one.tensor, attribute)
                kept.append((one.name, one.tensor, attribute, None if found is None else found.clone()))
        return cls(kept)

    def changed(self) -> Seen:
        """Those that came or went, and those that may hold something else by now."""
        pairs, names = [], []
        for parameter, tensor, attribute, before in self.kept:
            name, now = (
                f"gradient in {'.' * (attribute == 'grad')}{attribute} of {parameter}",
                _tensor(tensor, attribute),
            )
            if now is not None and before is not None:
                pairs.append((name, now, before))
            elif now is not before:
                names.append(name)
        return Seen(pairs, names)


def _tensor(parameter: torch.Tensor, attribute: str) -> torch.Tensor | None:
    found = getattr(parameter, attribute, None)
    if not isinstance(found, torch.Tensor) or (found.layout, found.device) != (torch.strided, parameter.device):
        return None  # where it is looked at, it is told
    return found


def _wgrad(
    case: Case,
    role: Role,
    weights: list[torch.Tensor],
    attached: list[Placed],
    hooks: Hooks,
    device: torch.device,
) -> list[Found]:
    """Both buffers of the weights of one layer."""
    calls = hooks.taken()
    grads = [read(weight.grad, device, hooks=called) for weight, called in zip(weights, calls, strict=True)]
    owned: list[Placed | None] = [*attached] or [None] * len(weights)
    main_grads = [
        read(
            getattr(weight, "main_grad", None),
            device,
            added_flag=truth(getattr(weight, "grad_added_to_main_grad", None)),
            replaced=own is not None and own.replaced_in(weight),
        )
        for weight, own in zip(weights, owned, strict=True)
    ]
    return [
        Found(role, "grad", per_expert(grads, case.num_gemms, part(case, role))),
        Found(role, "main_grad", per_expert(main_grads, case.num_gemms, part(case, role))),
    ]
