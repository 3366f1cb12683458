"""Which chains do one thing wrong each? The torch chain with a fault between its layers: targets of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.compute.providers.torch_op_mlp import ChainLayer
from gradcheck_cli.records.case import Case

silu = torch.nn.functional.silu

Middle = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def right(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """silu(a) b s."""
    return silu(a) * b * s


class Frozen(LoopLayer):
    """A layer that reads its weights and gives them no gradient."""

    def used(self) -> list[torch.Tensor]:
        return [one.detach() for one in super().used()]


class OfOthers(LoopLayer):
    """A layer that multiplies each expert's rows with the next one's weight."""

    def used(self) -> list[torch.Tensor]:
        used = super().used()
        return [used[0].roll(-1, 0)] if self.packed else [*used[1:], used[0]]


@dataclass(frozen=True)
class Fault:
    """What is between the layers, of h (T, 2 N), and what the layers are."""

    middle: Middle = right
    h: Callable[[torch.Tensor], torch.Tensor] = lambda h: h
    fc1: type[LoopLayer] = LoopLayer
    fc2: type[LoopLayer] = LoopLayer

    def __call__(self, case: Case, device: torch.device) -> FaultyChain:
        return FaultyChain(case, device, self)


class FaultyChain(ChainLayer):
    """The torch chain with a fault."""

    def __init__(self, case: Case, device: torch.device, fault: Fault) -> None:
        super().__init__(case, device)
        self.fault = fault
        for layer, kind in ((self.fc1, fault.fc1), (self.fc2, fault.fc2)):
            layer.__class__ = kind

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        gates, units = self.fault.h(self.fc1.forward(x, m_splits)).chunk(2, dim=-1)
        return self.fc2.forward(self.fault.middle(gates, units, self.probs.unsqueeze(-1)), m_splits)


def with_the_gradient_of_gates(a: torch.Tensor) -> torch.Tensor:
    """silu(a), whose derivative is 1."""
    return silu(a).detach() + (a - a.detach())  # nothing rounds


fc1_lost = Fault(fc1=Frozen)
fc2_lost = Fault(fc2=Frozen)
fc2_of_others = Fault(fc2=OfOthers)
gates_swapped = Fault(lambda a, b, s: right(b, a, s))
probs_detached = Fault(lambda a, b, s: right(a, b, s.detach()))
probs_squared = Fault(lambda a, b, s: right(a, b, s * s))
straight_through = Fault(lambda a, b, s: with_the_gradient_of_gates(a) * b * s)
unscaled_backward = Fault(lambda a, b, s: right(a, b, torch.ones_like(s)) + (right(a, b, s - 1)).detach())
gelu = Fault(lambda a, b, s: torch.nn.functional.gelu(a) * b * s)
clamped = Fault(lambda a, b, s: right(a.clamp(max=7), b, s))
units_clamped = Fault(lambda a, b, s: right(a, b.clamp(-7, 7), s))
probs_clamped = Fault(lambda a, b, s: right(a, b, s.clamp(max=1)))
overflowing = Fault(lambda a, b, s: a * a.exp() / (1 + a.exp()) * b * s)
in_fewer_digits = Fault(h=lambda h: h + (h.to(torch.float8_e4m3fn).to(h.dtype) - h).detach())


def refused(h: torch.Tensor) -> torch.Tensor:
    """An activation that takes no such input."""
    raise RuntimeError(f"expected rows of 16 gates, found {h.shape[1]}")


class Untold(LoopLayer):
    """A layer that writes its main_grad, and does not say so."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        for weight in self.weights:
            weight.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad_added_to_main_grad", False))
        return super().forward(x, m_splits)


class InGrad(LoopLayer):
    """A layer that leaves in .grad what is to be in main_grad."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        for weight in self._weights:
            weight._post_accumulate_grad_hooks = None  # torch drops them with the next one
            weight.register_post_accumulate_grad_hook(lambda _: None)
        return super().forward(x, m_splits)


class OnceMore(LoopLayer):
    """A layer whose main_grad nobody asked it to write."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        for weight in self.weights:
            weight.main_grad.add_(1)  # type: ignore[attr-defined]
        return super().forward(x, m_splits)


x_detached = Fault(h=lambda h: h.detach().requires_grad_())
raises = Fault(h=refused)
fc2_in_grad = Fault(fc2=InGrad)
fc2_untold = Fault(fc2=Untold)
fc2_written = Fault(fc2=OnceMore)
nonfinite = Fault(h=lambda h: h * torch.nan)


def without_second_weights(case: Case, device: torch.device) -> LoopLayer:
    """A single layer in a chain's place."""
    return LoopLayer(case, device)
