"""Which gradients does a case have, and of which shape is each expert's part? Read from a case alone."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import ROLES, Role

# The api whose layer is a chain: a grouped linear layer fc1, a SwiGLU scaled by probabilities, and another layer, fc2.
CHAIN = "op_mlp"

# What has a row for each token, what is summed over tokens into a parameter, and what of that may go into a main_grad.
BY_TOKEN: tuple[Role, ...] = ("fprop", "dgrad", "pgrad")
WEIGHTS: tuple[Role, ...] = ("wgrad", "wgrad_fc2")
OF_A_CHAIN: tuple[Role, ...] = ("wgrad_fc2", "pgrad")


def is_chain(case: Case) -> bool:
    """Whether a case is of two layers with an activation between them, and not of one."""
    return case.api == CHAIN


def roles_of(case: Case) -> list[Role]:
    """The gradients that a case has."""
    axes = {"api": case.api, "bias": case.bias}
    return [role for role in ROLES if has(axes, role)]


def has(axes: Mapping[str, object], role: Role) -> bool:
    """Whether a case with these axes has such a gradient: bgrad with a bias, a second wgrad and pgrad of a chain."""
    if role in OF_A_CHAIN:
        return axes.get("api") == CHAIN
    return role != "bgrad" or bool(axes.get("bias"))


def weights_of(case: Case) -> list[Role]:
    """The wgrads that a case has, one for each layer."""
    return [role for role in WEIGHTS if role == "wgrad" or is_chain(case)]


def part(case: Case, role: Role) -> tuple[int, ...]:
    """The shape of an expert's weight (N, K) or bias (N,); of what has a row for each token, the rest of it."""
    features, n = case.in_features, case.out_features
    if not is_chain(case):
        shapes: dict[Role, tuple[int, ...]] = {
            "fprop": (n,),
            "dgrad": (features,),
            "wgrad": (n, features),
            "bgrad": (n,),
        }
        return shapes[role]
    # HIDDEN and FFN in Megatron's words: fc1 makes gates and linear units of HIDDEN, fc2 makes HIDDEN of FFN.
    chain: dict[Role, tuple[int, ...]] = {
        "fprop": (features,),
        "dgrad": (features,),
        "wgrad": (2 * n, features),
        "wgrad_fc2": (features, n),
        "pgrad": (),
    }
    return chain[role]


def rows(case: Case, role: Role, microbatch: int) -> list[int]:
    """Rows of each expert in a gradient flattened to two dimensions."""
    if role in BY_TOKEN:
        return list(case.splits(microbatch))
    return [1 if role == "bgrad" else part(case, role)[0]] * case.num_gemms


def contracted(case: Case, role: Role) -> int:
    """Products in each sum of what has a row for each token; a parameter's are as many as it got tokens."""
    layer: dict[Role, int] = {"fprop": case.in_features, "dgrad": case.out_features}
    chain: dict[Role, int] = {"fprop": case.out_features, "dgrad": 2 * case.out_features, "pgrad": case.out_features}
    return (chain if is_chain(case) else layer)[role]


def layers(case: Case) -> tuple[Case, Case]:
    """The two layers of a chain as cases of their own: fc1 makes two of each feature that fc2 takes."""
    n = case.out_features
    fc1 = msgspec.structs.replace(case, out_features=2 * n)
    return fc1, msgspec.structs.replace(case, in_features=n, out_features=case.in_features)
