"""What holds where weights are used twice in one step: two forwards, one backward through both outputs?"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import CPU, engine
from test_mutants import judged, phases

from gradcheck_cli import pipeline
from gradcheck_cli.compute.contents import accumulated
from gradcheck_cli.compute.orders import in_any_order
from gradcheck_cli.compute.products import Exact
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import expected, in_words
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import paired, steps_of
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.verdict import Outcome, Verdict

TIED = "tied_weights=1:bias=1:m_splits=5,0,9,3:in_features=16:out_features=24"
LOOP = f"torch:api=loop:{TIED}"
FUSED = f"{LOOP}:fuse_wgrad=1"

STEPS = {"2": [(0, 1)], "5": [(0, 1), (2, 3), (4,)]}


@pytest.mark.parametrize(("count", "steps"), STEPS.items(), ids=STEPS)
def test_microbatches_go_in_pairs_and_a_last_one_alone(count: str, steps: list[tuple[int, ...]]) -> None:
    assert steps_of(Case.parse(f"{LOOP}:microbatches={count}")) == steps


def test_without_the_axis_every_microbatch_has_a_backward_of_its_own() -> None:
    assert steps_of(Case.parse("torch:api=loop:microbatches=3")) == [(0,), (1,), (2,)]
    assert paired(Case.parse("torch:api=loop:microbatches=3"), 2) == ()


def test_rows_are_due_of_every_microbatch_and_parameters_after_each_backward() -> None:
    due = {(slot.role, slot.microbatch) for slot in expected(Case.parse(f"{LOOP}:microbatches=3"))}
    rows = {(role, k) for role in ("fprop", "dgrad") for k in range(3)}
    assert due == rows | {(role, k) for role in ("wgrad", "bgrad") for k in (1, 2)}


def test_show_says_which_outputs_share_a_backward() -> None:
    said = "\n".join(in_words(Case.parse(f"{FUSED}:delay_wgrad_compute=1:microbatches=3")))
    assert "one backward goes through the outputs of microbatches 0 and 1, one of 2" in said
    assert "backward_dw() is called once for each use after each backward" in said


EXCLUDED = {
    f"{LOOP}:microbatches=1": "tied-weights-need-two-uses",
    f"{FUSED}:overwrite_main_grad=all": "tied-uses-are-added",
    f"{FUSED}:is_first_microbatch=first": "tied-uses-are-added",
}


@pytest.mark.parametrize(("text", "constraint"), EXCLUDED.items(), ids=EXCLUDED)
def test_what_is_nobodys_contract_is_excluded(text: str, constraint: str) -> None:
    point = matrix.excluded(Case.parse(text))
    assert point is not None
    assert point.constraint == constraint


RIGHT = [
    f"torch:api={api}:{TIED}:fuse_wgrad={fused}:dtype={dtype}{delayed}{count}"
    for api, fused, dtype in product(("loop", "grouped_mm"), (0, 1), ("bf16", "fp16", "fp32"))
    for delayed, count in (("", ":microbatches=5"), (":delay_wgrad_compute=1", ""))
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_layer_passes_and_every_fault_is_seen(text: str) -> None:
    found = judged(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert found.mutants.survived == []
    wanted = {"wgrad_use_lost", "bgrad_use_lost", "wgrad_last_only", "wgrad_first_only", "wgrad_stale", "dgrad_stale"}
    assert wanted <= {phase.mutant for phase in phases(text)}


class _Adds(torch.autograd.Function):
    """The identity; on the way back each gradient is added to main_grad at once, and autograd gets a dummy."""

    @staticmethod
    def forward(ctx: Any, used: torch.Tensor, weight: torch.Tensor, content: float) -> torch.Tensor:
        ctx.weight, ctx.content = weight, content
        return used.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.weight.main_grad.add_(grads[0])
        ctx.weight.grad_added_to_main_grad = True
        return torch.full_like(grads[0], ctx.content), None, None


class AddsItself(LoopLayer):
    """A layer that adds each use's wgrad to main_grad in the order of autograd, as a fused GEMM does."""

    dummy = 0.0

    def _accumulated(self, weight: torch.Tensor) -> None:
        """Nothing is left for a hook."""

    def used(self) -> list[torch.Tensor]:
        return [_Adds.apply(one, one, self.dummy) for one in super().used()]  # type: ignore[no-untyped-call]


class LeavesADummy(AddsItself):
    dummy = 1.0


class Assigns(LoopLayer):
    """As Transformer Engine's backward_dw() does: `.grad` is assigned, and what an earlier use left there is lost."""

    def backward_dw(self) -> None:
        for weight in self._weights:
            weight.grad = None
        super().backward_dw()


class DoublesTheEarlierDgrad(LoopLayer):
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        if self._calls == 0:
            x.register_hook(lambda dgrad: 2 * dgrad)
        return super().forward(x, m_splits)


class WritesTheEarlierInput(LoopLayer):
    """In the one backward of both, once the later microbatch's dgrad is there."""

    given: torch.Tensor

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        if self._calls == 0:
            self.given = x.data
        elif self._calls == 1:
            x.register_hook(self.write)
        return super().forward(x, m_splits)

    def write(self, _: torch.Tensor) -> None:
        self.given.fill_(3)


def seen(text: str, layer: str) -> Observation:
    job = msgspec.structs.replace(pipeline.job(Case.parse(text)), target=f"test_tied:{layer}")
    return engine(job.target).run(job)


def verdict_on(text: str, layer: str) -> Verdict:
    return conclude(Case.parse(text), seen(text, layer), CPU)


@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
@pytest.mark.parametrize("microbatches", (2, 5))
def test_uses_may_be_added_to_main_grad_one_by_one(dtype: str, microbatches: int) -> None:
    text = f"{FUSED}:zero_out_wgrad=1:main_grad_dtype={dtype}:microbatches={microbatches}"
    found = verdict_on(text, "AddsItself")
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_a_sum_of_dummies_that_is_not_zero_is_named() -> None:
    found = verdict_on(f"{FUSED}:zero_out_wgrad=1", "LeavesADummy")
    assert [(one.slot[:5], one.diagnosis) for one in found.findings] == [("wgrad", "dummy not zero")]
    assert verdict_on(FUSED, "LeavesADummy").outcome is Outcome.PASSED


def test_a_lost_use_is_named() -> None:
    # Of the third expert, whose tokens all came with that use, nothing is left.
    found = verdict_on(f"{LOOP}:delay_wgrad_compute=1", "Assigns").findings
    assert {one.slot[:5] for one in found} == {"wgrad"}
    assert {one.diagnosis for one in found} == {"use of tied weights in microbatch 0 lost", "zero"}


def test_what_was_lent_is_watched_over_both_microbatches() -> None:
    exact = seen(LOOP, "WritesTheEarlierInput").channels[0]
    disturbed = [(phase.microbatch, phase.phase, phase.disturbed) for phase in exact.phases if phase.disturbed]
    assert disturbed == [(1, "backward", ["x of microbatch 0"])]


def test_the_dgrad_of_the_earlier_microbatch_is_judged_as_well() -> None:
    found = verdict_on(LOOP, "DoublesTheEarlierDgrad").findings
    assert {(one.slot[:5], one.diagnosis) for one in found} == {("dgrad", "doubled")}
    assert all("after the backward of microbatch 0" in one.why for one in found)


def sums(case: Case, values: list[torch.Tensor], start: torch.Tensor, wanted: list[tuple[int, ...]]) -> torch.Tensor:
    for k in [k for step in wanted for k in step]:
        start = (start + values[k]).bfloat16().double()
    return start


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10**6))
def test_every_order_of_two_uses_is_predicted_and_no_other(microbatches: int, seed: int) -> None:
    case = Case.parse(f"{LOOP}:microbatches={microbatches}")
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randint(-999, 999, (5, 3), generator=generator).double() for _ in range(microbatches + 1)]
    *steps, start = (value.bfloat16().double() for value in values)
    each = product(*(permutations(step) for step in steps_of(case)))
    wanted = torch.stack([sums(case, steps, start, list(order)) for order in each])
    found = torch.stack(in_any_order(case, steps, start, lambda a, b: (a + b).bfloat16().double(), None))
    for one, other in zip(wanted.reshape(len(wanted), -1).T, found.reshape(len(found), -1).T, strict=True):
        assert set(one.tolist()) == set(other.tolist())


def test_autograd_joins_the_uses_of_a_step_before_it_adds_them() -> None:
    case = Case.parse(LOOP)
    one, two, start = (torch.tensor([value]).double() for value in (256.0, 1.0, 1.0))

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).bfloat16().double()

    # 256 + 1 stays 256 in bf16, and 1 + 1 + 256 is 258.
    assert {float(held) for held in in_any_order(case, [one, two], start, rounded, rounded)} == {256.0, 258.0}
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    weight.grad = start.bfloat16()
    (weight * one.bfloat16() + weight * two.bfloat16()).sum().backward()
    assert float(weight.grad) == 256.0


# What a bf16 buffer gets -> by how many of its roundoffs each way of adding the second pair errs, beside the roundings
# of each wgrad, of 1 + 1 or 255 + 255, and of the end.
WAYS = {
    "the earlier use first": ((1, 1, 256, -256), (258, 254, 0)),
    "the later use first": ((1, 1, -256, 256), (254, 258, 0)),
    "both joined": ((-255, -255, 256, 256), (254, 254, 512)),
}


@pytest.mark.parametrize(("values", "ways"), WAYS.values(), ids=WAYS)
def test_a_bound_allows_the_way_of_adding_that_errs_most(values: tuple[int, ...], ways: tuple[int, ...]) -> None:
    case = Case.parse("torch:api=loop:tied_weights=1:microbatches=4:m_splits=1")
    rounding = pipeline.job(case).rounding["wgrad"]
    tensors = [torch.tensor([[[float(value)]]]).double() for value in values]
    steps = [Exact(value, value.abs(), value.abs()) for value in tensors]
    held = accumulated(case, rounding, steps, None, rounds_first=True)
    own = sum(map(abs, values)) + abs(values[0] + values[1])
    assert held.fixed is not None
    assert float(held.fixed - 4 * rounding.floor) / rounding.store == own + max(ways) + abs(sum(values))


def test_a_fused_bound_allows_the_later_use_first() -> None:
    # main_grad holds -256: with 256 it is 0, and -1.5 is then added exactly; with -1.5 it is -257.5, and rounds.
    case = Case.parse("te:api=module:fuse_wgrad=1:main_grad_dtype=bf16:tied_weights=1:m_splits=1")
    rounding = pipeline.job(case).rounding["wgrad"]
    p, q = (torch.tensor([[[value]]]).double() for value in (256.0, -1.5))
    held = accumulated(case, rounding, [Exact(one, one.abs(), one.abs()) for one in (p, q)], -p, rounds_first=False)
    assert held.fixed is not None
    assert float(held.fixed) / rounding.buffer == 256 + 1.5 + 257.5 + 1.5


class AtOnce(LoopLayer):
    """A layer that computes the wgrad of both uses in one GEMM, in fp32, with the second backward_dw()."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.waiting: list[tuple[torch.Tensor, ...]] = []

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        y.register_hook(lambda g: self.waiting.append((*x.detach().split(m_splits), *g.split(m_splits))))
        return y

    @torch.no_grad()
    def backward_dw(self) -> None:
        if len(self.waiting) < 2:
            return
        for i, weight in enumerate(self._weights):
            x, g = (torch.cat([use[j] for use in self.waiting]).float() for j in (i, i + self.experts))
            grad = (g.T @ x).to(weight.dtype)
            weight.grad = grad if weight.grad is None else weight.grad + grad
        self.waiting.clear()


def at_once(case: Case, device: torch.device) -> AtOnce:
    return AtOnce(case, device)


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_one_gemm_for_both_uses_rounds_less_and_is_as_right(dtype: str) -> None:
    case = Case.parse(
        f"torch:api=loop:tied_weights=1:delay_wgrad_compute=1:m_splits=31,24:dtype={dtype}:in_features=40:out_features=24:microbatches=4"
    )
    job = msgspec.structs.replace(pipeline.job(case), target="test_tied:at_once")
    found = conclude(case, engine(job.target).run(job), CPU)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
