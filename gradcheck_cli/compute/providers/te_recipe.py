"""How is Transformer Engine told a recipe, and which one did a forward take?"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch
import transformer_engine.pytorch

from gradcheck_cli.compute.providers.te_taken import contexts
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.recipe import recipe_of

# What quantises the input of a forward, by the class that does it (transformer_engine/pytorch/tensor/*.py).
QUANTISERS = {
    "Float8Quantizer": "DelayedScaling",
    "Float8CurrentScalingQuantizer": "Float8CurrentScaling",
    "Float8BlockQuantizer": "Float8BlockScaling",
    "MXFP8Quantizer": "MXFP8",
    "NVFP4Quantizer": "NVFP4",
}


class Quantised:
    """The recipe of a case, as the layer is built and its forwards are run under it."""

    def __init__(self, case: Case) -> None:
        asked = recipe_of(case)
        self.asked = asked is not None
        recipes = import_module("transformer_engine.common.recipe") if asked else None
        override = case.backward_override
        options = {} if override == "none" else {"backward_override": override}
        self._recipe: Any = getattr(recipes, asked.class_name)(**options) if asked else None
        self._keeps_weights = case.quantized_model_init
        self.taken: dict[str, str | int] = {}

    def building(self) -> AbstractContextManager[Any]:
        """Around the making of the layer: whether its weights are kept as the recipe quantises them."""
        if not self._keeps_weights:
            return nullcontext()
        module: Any = transformer_engine.pytorch
        entered: AbstractContextManager[Any] = module.quantized_model_init(enabled=True, recipe=self._recipe)
        return entered

    def context(self) -> AbstractContextManager[Any]:
        """Around one forward; scales of DelayedScaling follow at its end."""
        if not self.asked:
            return nullcontext()
        module: Any = transformer_engine.pytorch
        entered: AbstractContextManager[Any] = module.autocast(enabled=True, recipe=self._recipe)
        return entered

    def look(self, output: torch.Tensor) -> None:
        """Read from the node that made the output which recipe the forward took; only who asks for one must know."""
        found = recipe_taken(output)
        self.taken |= {name: ran for name, ran in found.items() if ran != "unknown" or self.asked}

    def effective(self) -> dict[str, str | int]:
        """The recipe of the last forward that says it, and what its backward will multiply."""
        return dict(self.taken)


def recipe_taken(output: torch.Tensor) -> dict[str, str]:
    """The recipe, none, or unknown, as the autograd node that made the output remembers it; empty where none made it.

    The module keeps `fp8` in its context, which an override sets to False for its backward, the basic op
    `with_quantized_compute`, and both their quantisers. The op knows no override.
    """
    if output.grad_fn is None:
        return {}
    for node in contexts(output.grad_fn):
        quantised = getattr(node, "fp8", getattr(node, "with_quantized_compute", None))
        if quantised is None:
            continue
        override = getattr(node, "backward_override", None)
        used = next(iter(getattr(node, "input_quantizers", None) or ()), None)
        ran = QUANTISERS.get(type(used).__name__, "unknown") if quantised or override else "none"
        return {"recipe": ran, "backward_override": override or "none"}
    return {"recipe": "unknown"}
