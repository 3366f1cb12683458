"""How does plain torch do it? `torch.nn.functional.linear` on the rows of each expert in turn, or a recipe's."""

from __future__ import annotations

import torch

from gradcheck_cli.compute.providers.torch_layer import TorchLayer
from gradcheck_cli.compute.providers.torch_quantised import QuantisedLinear, Quantiser
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.recipe import recipe_of


class LoopLayer(TorchLayer):
    """One F.linear per expert, experts without tokens included, so that each gets its zeros."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        recipe = recipe_of(case)
        self.quantiser = Quantiser(recipe, case.backward_override) if recipe else None

    def product(
        self, expert: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x w^T (+ b) of one expert."""
        if self.quantiser is None:
            return torch.nn.functional.linear(x, weight, bias)
        y: torch.Tensor = QuantisedLinear.apply(x, weight, bias, self.quantiser, expert)  # type: ignore[no-untyped-call]
        return y

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        if self.quantiser and torch.is_grad_enabled():
            self.quantiser.step()
        used = self.used()
        weights = used[0].unbind() if self.packed else used
        rows = x[: sum(m_splits)].split(list(m_splits))
        if self._case.return_bias or self._case.padded_tail != "none":
            products = [self.product(i, r, w) for i, (r, w) in enumerate(zip(rows, weights, strict=True))]
            return self.finished(torch.cat(products), x, m_splits)
        biases: list[torch.Tensor | None] = [*self.bias_of_each()] or [None] * self.experts
        whole = enumerate(zip(rows, weights, biases, strict=True))
        return torch.cat([self.product(i, r, w, b) for i, (r, w, b) in whole])

    def effective(self) -> dict[str, str | int]:
        """Layout, dtype and recipe."""
        q = self.quantiser
        ran = {"recipe": q.recipe.name, "backward_override": q.override} if q else {"recipe": "none"}
        return {**super().effective(), **ran}


def build(case: Case, device: torch.device) -> LoopLayer:
    """The layer of a case with api=loop."""
    return LoopLayer(case, device)
