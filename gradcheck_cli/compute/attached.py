"""What does a trainer do to parameters before the first step? Takes hold of them, freezes some, attaches main_grad."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from gradcheck_cli.compute.lent import Placed, placed
from gradcheck_cli.compute.provider import DTYPES, Layer
from gradcheck_cli.compute.stored import is_quantised
from gradcheck_cli.compute.trial import parameters_of, weights_fc2_of
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen, overwriting
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import weights_of

FLAG = "grad_added_to_main_grad"


@dataclass(frozen=True)
class Parameters:
    """The weights, one packed or one for each expert, the biases, and the weights of a chain's second layer."""

    weights: list[torch.Tensor]
    biases: list[torch.Tensor]
    weights_fc2: list[torch.Tensor] = field(default_factory=list)

    @property
    def packed(self) -> bool:
        """Whether there is a single (G, N, K) weight."""
        return packed(self.weights)

    def of(self, role: Role) -> list[torch.Tensor]:
        """The parameters whose gradient that is."""
        return {"wgrad_fc2": self.weights_fc2, "bgrad": self.biases}.get(role, self.weights)

    @property
    def packed_bias(self) -> bool:
        """Whether there is a single (G, N) bias."""
        return len(self.biases) == 1 and self.biases[0].dim() == 2


def held_parameters(case: Case, layer: Layer) -> Parameters:
    """The parameters as a trainer takes hold of them; ValueError where they are not one for each expert, or packed."""
    held = Parameters(*parameters_of(layer), weights_fc2_of(layer))
    experts = case.num_gemms
    for role in weights_of(case):
        if not packed(held.of(role)) and len(held.of(role)) != experts:
            where, count = " of fc2" if role == "wgrad_fc2" else "", len(held.of(role))
            raise ValueError(f"expected {experts} weights{where} or a packed one; after loading there are {count}")
    if case.bias and len(held.biases) != experts and not held.packed_bias:
        raise ValueError(f"expected {experts} biases or a packed one; after loading there are {len(held.biases)}")
    return held


def packed(weights: list[torch.Tensor]) -> bool:
    """Whether the weights of all experts are one parameter."""
    return len(weights) == 1 and weights[0].dim() == 3


def layout(layer: Layer) -> dict[str, str | int]:
    """The parameters as they are, under the names of the axes, whatever the layer says of itself."""
    (weights, biases), names = parameters_of(layer), {dtype: name for name, dtype in DTYPES.items()}
    second = weights_fc2_of(layer)
    dtypes = dict.fromkeys(names.get(one.dtype, str(one.dtype)) for one in (*weights, *biases, *second))
    first = weights[0]
    return {
        "single_grouped_weight": _in_common(int(packed(one)) for one in (weights, second) if one),
        "quantized_model_init": _in_common(int(is_quantised(one)) for one in (*weights, *second)),
        "dtype": " and ".join(dtypes),
        "bias": int(len(biases) > 0),
        "single_grouped_bias": int(len(biases) == 1 and biases[0].dim() == 2),
        "num_gemms": first.shape[0] if packed(weights) else len(weights),
        "in_features": first.shape[-1],
        # fc1 of a chain makes two of each feature that fc2 takes.
        "out_features": first.shape[-2] // (2 if second else 1),
    }


def _in_common(values: Iterable[int]) -> str | int:
    """What all of them are; where they differ, what any is."""
    first, *others = dict.fromkeys(values)
    return " and ".join(map(str, (first, *others))) if others else first


def freeze(case: Case, held: Parameters) -> None:
    """Take from the parameters that the case freezes their requires_grad, as a trainer does before the first step."""
    experts = range(case.num_gemms)
    asleep = [frozen(case, 0)] if held.packed else [frozen(case, i) for i in experts]
    for weight, sleeps in zip(held.weights, asleep, strict=True):
        if sleeps:
            weight.requires_grad = False
    for bias in held.biases if case.frozen_bias else ():
        bias.requires_grad = False


class Hooks:
    """How often autograd was handed a gradient of each weight, or a dummy, for the hooks of a data-parallel wrapper.

    Where it is handed None a hook is called with nothing, if at all, and a wrapper that reduces in it stops there.
    """

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.calls = [0] * len(weights)
        for i, weight in enumerate(weights):
            if weight.requires_grad:
                weight.register_hook(lambda given, i=i: self._called(i, given))

    def _called(self, i: int, given: torch.Tensor | None) -> None:
        self.calls[i] += given is not None

    def taken(self) -> list[int]:
        """The calls of each weight's since this was last asked."""
        calls, self.calls = self.calls, [0] * len(self.calls)
        return calls


def attach_main_grad(
    case: Case, weights: list[torch.Tensor], buffer: torch.Tensor, name: str = "main_grad"
) -> list[Placed]:
    """Give each weight a main_grad: views of one contiguous (G, N, K) buffer, as a data-parallel wrapper does.

    With it go the attributes that tell a layer what to do with it; where the case has no main_grad, nothing does.
    """
    if case.main_grad == "absent":
        return []
    attached = [buffer] if packed(weights) else list(buffer)
    for i, (weight, main_grad) in enumerate(zip(weights, attached, strict=True)):
        said: dict[str, object] = {"main_grad": main_grad}
        if case.grad_added_to_main_grad == "attached":
            said[FLAG] = False
        if overwriting(case, i):
            said["overwrite_main_grad"] = True
        if case.zero_out_wgrad:
            said["zero_out_wgrad"] = True
        for attribute, value in said.items():
            setattr(weight, attribute, value)
    return named(name, attached)


def clear_flags(case: Case, held: Parameters) -> None:
    """Set `grad_added_to_main_grad` back before a backward, as a wrapper does that reads it after each.

    megatron-fsdp does at each unshard, and megatron-core's data-parallel wrapper once a step.
    """
    if case.main_grad == "absent" or case.grad_added_to_main_grad == "absent":
        return
    for role in weights_of(case):
        for weight in held.of(role):
            setattr(weight, FLAG, False)


def named(name: str, tensors: list[torch.Tensor]) -> list[Placed]:
    """Tensors where they lie now, each with its expert in the name, or a packed one."""
    whole = len(tensors) == 1 and tensors[0].dim() == (2 if name == "bias" else 3)
    return [placed(name if whole else f"{name}[{i}]", tensor) for i, tensor in enumerate(tensors)]
