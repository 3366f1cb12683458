"""Does each phase change only what it may, and is the phase named in which something else was changed?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from in_process import CPU, engine

from gradcheck_cli import pipeline
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import in_words
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.sequence import LEAVES, sequence
from gradcheck_cli.records.verdict import Finding, Outcome

SHAPE = "m_splits=5,0,9:in_features=16:out_features=24"

ORDERS = {
    "microbatches=2": "forward 0, backward 0, forward 1, backward 1",
    "delay_wgrad_compute=1:microbatches=1": "forward 0, backward 0, backward_dw 0",
    "tied_weights=1:inference=eval:microbatches=3": (
        "forward 0, inference 0, forward 1, inference 1, backward 0 and 1, forward 2, inference 2, backward 2"
    ),
    "pipelined=1:delay_wgrad_compute=1:microbatches=3": (
        "forward 0, forward 1, backward 0, backward_dw 0, backward 1, backward_dw 1, forward 2, backward 2, "
        "backward_dw 2"
    ),
    "retain_graph=1:inference=no_grad:microbatches=2": "forward 0, inference 0, backward 0, forward 1, backward 1",
    "optimizer=sgd:moved=to_dtype:microbatches=2": "move 0, forward 0, backward 0, step 0, forward 1, backward 1",
}


@pytest.mark.parametrize(("axes", "order"), ORDERS.items(), ids=ORDERS)
def test_show_tells_the_phases_in_their_order_and_what_each_may_change(axes: str, order: str) -> None:
    case = Case.parse(f"torch:api=loop:{axes}")
    said = in_words(case)
    assert f"in this order: {order}" in said
    for turn in sequence(case):
        assert f"{turn.phase} changes {LEAVES[turn.phase]}" in said


class AddsInItsForward(LoopLayer):
    """Its forward adds to the main_grad of a weight, where only a backward may."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        if self._calls == 1:
            self._weights[0].main_grad.data.add_(1.0)
        return super().forward(x, m_splits)


class ClearsWhenEvaluated(LoopLayer):
    """A mode that is asked for sets the gradients to None."""

    def train(self, mode: bool = True) -> ClearsWhenEvaluated:  # noqa: FBT001, FBT002
        for bias in self._biases if not mode else ():
            bias.grad = None
        super().train(mode)
        return self


class KeepsItsMemory(LoopLayer):
    """Its parameters wrap memory that no cast reaches, as packed ones of Transformer Engine's do."""

    def to(self, *given: Any, **named: Any) -> Any:
        before = [weight.detach().clone() for weight in self._weights]
        super().to(*given, **named)
        for weight, kept in zip(self._weights, before, strict=True):
            wrapped: Any = weight
            wrapped.rowwise_data = kept
        return self


class LeavesGradModeOff(LoopLayer):
    """An evaluation begins without gradients, and nobody takes that back."""

    def train(self, mode: bool = True) -> LeavesGradModeOff:  # noqa: FBT001, FBT002
        if not mode:
            torch.set_grad_enabled(False)
        super().train(mode)
        return self


class ForgetsDeterminism(LoopLayer):
    """Its forward lets go of the deterministic algorithms that were asked for."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        torch.use_deterministic_algorithms(mode=False)
        return super().forward(x, m_splits)


class BuiltWithoutGradients(LoopLayer):
    """The process has no gradients any more once it is built."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        torch.set_grad_enabled(False)


CHANGED = {
    "AddsInItsForward": (
        "fuse_wgrad=1:microbatches=2",
        "main_grad of weight changed",
        "expected main_grad of weight[0] to stay as it was, bit for bit, in a phase that brings no gradient; found it "
        "changed (after the forward of microbatch 1, exact data)",
    ),
    "ClearsWhenEvaluated": (
        "inference=eval:bias=1:microbatches=2",
        ".grad of bias changed",
        "(after the inference of microbatch 1, exact data)",
    ),
    "KeepsItsMemory": (
        "moved=to_dtype:microbatches=2",
        "elements of weight in another dtype",
        "(after the move of microbatch 0, exact data)",
    ),
    "LeavesGradModeOff": (
        "inference=eval:microbatches=2",
        "the grad mode changed",
        "expected the grad mode to be left as it was, for the whole process has it; found it changed, so that whatever "
        "runs next would run otherwise (after the inference of microbatch 0, exact data)",
    ),
    "ForgetsDeterminism": (
        "deterministic=1",
        "the choice of deterministic algorithms changed",
        "(after the forward of microbatch 0, exact data)",
    ),
}


def findings(layer: str, axes: str) -> list[Finding]:
    case, target = Case.parse(f"torch:api=loop:{axes}:{SHAPE}"), f"test_sequence:{layer}"
    job = msgspec.structs.replace(pipeline.job(case), target=target)
    return conclude(case, engine(target).run(job), CPU).findings


@pytest.mark.parametrize("layer", CHANGED)
def test_what_a_phase_may_not_change_is_found_and_the_phase_named(layer: str) -> None:
    axes, diagnosis, why = CHANGED[layer]
    found = {one.diagnosis: one for one in findings(layer, axes)}
    assert diagnosis in found, found
    assert found[diagnosis].outcome is Outcome.UNEXPECTED
    assert why in found[diagnosis].why


@pytest.mark.parametrize("layer", ("ClearsWhenEvaluated", "KeepsItsMemory", "LeavesGradModeOff", "ForgetsDeterminism"))
def test_the_same_layer_is_right_where_the_phase_is_not_asked_for(layer: str) -> None:
    assert findings(layer, "bias=1:microbatches=2") == []


def test_what_a_layer_leaves_of_the_process_is_no_later_cases() -> None:
    assert [one.outcome for one in findings("BuiltWithoutGradients", "microbatches=1")] == [Outcome.RAISED]
    assert torch.is_grad_enabled()
    assert findings("LoopLayer", "microbatches=1") == []
