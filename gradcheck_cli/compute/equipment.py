"""What does a trainer equip a layer with before the first microbatch? Weights, main_grad, hooks, and a move."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gradcheck_cli.compute.attached import Hooks, Parameters, attach_main_grad, freeze, held_parameters
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.lending import FC2, Attached
from gradcheck_cli.compute.lent import ADDED_TO_BYTE, Guarded, guarded
from gradcheck_cli.compute.moving import move
from gradcheck_cli.compute.provider import DTYPES, Chain, Layer
from gradcheck_cli.compute.trial import as_chain
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import is_chain, weights_of

Trial = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Equipment:
    """The parameters as an optimizer holds them, and what was given to them."""

    main_grads: dict[Role, Guarded]
    chain: Chain | None
    held: Parameters
    attached: Attached
    hooks: dict[Role, Hooks]


def equip(case: Case, layer: Layer, inputs: Inputs, trial: Trial) -> Equipment:
    """Load the weights, freeze what is to be frozen, attach main_grad with its prefill, move the layer, hang hooks."""
    dtype = DTYPES[case.main_grad_dtype]
    main_grads = {
        role: guarded(f"main_grad{FC2 * (role == 'wgrad_fc2')}", inputs.prefill_of(role).to(dtype), ADDED_TO_BYTE)
        for role in weights_of(case)
    }
    with trial("loading of the weights"):
        chain = as_chain(layer) if is_chain(case) else None
        # Copies: the originals serve the reference, and every other case on the same data.
        layer.load(inputs.weight.clone(), None if inputs.bias is None else inputs.bias.clone())
        if chain and inputs.weight_fc2 is not None:
            chain.load_fc2(inputs.weight_fc2.clone())
    with trial("reading the parameters after loading"):
        # An optimizer holds these from here on; gradients that reach others put in their place are lost to it.
        held = held_parameters(case, layer)
        freeze(case, held)
        attached = {
            role: attach_main_grad(case, held.of(role), one.tensor, one.name) for role, one in main_grads.items()
        }
    with trial("move of the layer"):
        move(case, layer, inputs)
        hooks = {role: Hooks(held.of(role)) for role in weights_of(case)}
    return Equipment(main_grads, chain, held, attached, hooks)
