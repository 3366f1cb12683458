"""What does a candidate hold before its first microbatch?"""

from __future__ import annotations

from gradcheck_cli.compute.attached import Parameters, named
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.lent import Guarded, Loans, Placed, loaded
from gradcheck_cli.compute.provider import Layer
from gradcheck_cli.compute.trial import every_parameter
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen
from gradcheck_cli.records.observation import Role

# What the names of a chain's second layer end with.
FC2 = "_fc2"

Attached = dict[Role, list[Placed]]


def lent(
    case: Case, layer: Layer, inputs: Inputs, held: Parameters, attached: Attached, around: list[Guarded]
) -> Loans:
    """What a candidate holds before its first microbatch."""
    weights, biases, second = (
        named("weight", held.weights),
        named("bias", held.biases),
        named(f"weight{FC2}", held.weights_fc2),
    )
    due = biases if case.fuse_wgrad_accumulation else [*weights, *biases, *second]
    asleep = {one.name for i, one in enumerate(weights) if frozen(case, i)}
    asleep |= {one.name for one in biases if case.frozen_bias}
    given = {
        "weight": (weights, inputs.weight),
        "bias": (biases, inputs.bias),
        f"weight{FC2}": (second, inputs.weight_fc2),
    }
    kept = [loaded(name, own, values) for name, (own, values) in given.items() if values is not None]
    main_grads = [one for own in attached.values() for one in own]
    return Loans(kept, main_grads, around, due, lambda: every_parameter(layer), asleep)
