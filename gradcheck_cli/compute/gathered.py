"""Which gradients do the parameters of a layer hold, in which buffers?"""

from __future__ import annotations

import torch

from gradcheck_cli.compute.attached import Hooks, Parameters
from gradcheck_cli.compute.found import Found, per_expert, read, truth
from gradcheck_cli.compute.lending import Attached
from gradcheck_cli.compute.lent import Placed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import part, weights_of


def parameters_found(
    case: Case, held: Parameters, attached: Attached, hooks: dict[Role, Hooks], device: torch.device
) -> list[Found]:
    """The gradients of all parameters, in both buffers of each weight."""
    found = []
    for role in weights_of(case):
        found += _wgrad(case, role, held.of(role), attached[role], hooks[role], device)
    if case.bias:
        grads = [read(bias.grad, device) for bias in held.biases]
        found.append(Found("bgrad", "grad", per_expert(grads, case.num_gemms, part(case, "bgrad"))))
    return found


def left(held: Parameters) -> list[torch.Tensor]:
    """The tensors that the parameters have as their .grad by now."""
    grads = [one.grad for one in (*held.weights, *held.biases, *held.weights_fc2)]
    return [grad for grad in grads if grad is not None and grad.layout is torch.strided]


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
