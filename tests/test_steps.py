"""Is a layer judged rightly over a sequence of steps: with an optimizer in between, and once it was moved?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from in_process import CPU, engine, verdict
from test_mutants import judged as judged_with_all_mutants
from test_te_providers import Machine, judged

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.compute.stepping import Stepping
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import in_words
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.battery import STEPS, needed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import is_first, since_step, stepped_after
from gradcheck_cli.records.verdict import Outcome, Verdict

SHAPE = "m_splits=5,0,9,3:in_features=16:out_features=24"
LOOP = f"torch:api=loop:bias=1:{SHAPE}"

RIGHT = [
    *(f"{LOOP}:optimizer={name}:fuse_wgrad={fused}" for name in ("sgd", "adamw") for fused in (0, 1)),
    f"{LOOP}:optimizer=adamw:dtype=fp16",
    f"{LOOP}:optimizer=sgd:dtype=fp32:delay_wgrad_compute=1",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:delay_wgrad_compute=1:zero_out_wgrad=1:microbatches=3",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:is_first_microbatch=first:microbatches=3",
    f"{LOOP}:optimizer=adamw:fuse_wgrad=1:overwrite_main_grad=some:main_grad_dtype=bf16:microbatches=3",
    f"{LOOP}:optimizer=sgd:tied_weights=1:microbatches=5:dtype=fp32",
    f"{LOOP}:optimizer=adamw:frozen_weights=first",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:frozen_weights=last:microbatches=3",
    f"{LOOP}:optimizer=sgd:single_grouped_weight=1:recompute=reentrant:inference=eval",
    f"{LOOP}:optimizer=adamw:autocast=1:moved=load_state_dict:single_grouped_weight=1:fuse_wgrad=1",
    f"{LOOP}:optimizer=sgd:repeat=3:deterministic=1",
    f"{LOOP}:moved=to_dtype:fuse_wgrad=1:compile=1",
    f"{LOOP}:moved=to_dtype:dtype=fp16:single_grouped_weight=1:delay_wgrad_compute=1",
    f"{LOOP}:moved=load_state_dict:frozen_weights=last:single_grouped_bias=1",
    *(
        f"torch:api=loop:optimizer=sgd:fuse_wgrad=1:recipe={recipe}:m_splits=128,0,64:in_features=128:out_features=128"
        for recipe in ("Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling")
    ),
    "torch:api=grouped_mm:optimizer=adamw:single_grouped_weight=1:m_splits=16,0,32:in_features=16:out_features=24",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_layer_passes_over_steps_and_every_fault_is_seen(text: str) -> None:
    found = judged_with_all_mutants(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert found.mutants.survived == []


class CachesItsWeights(LoopLayer):
    """What the first forward multiplied is kept, and nobody asks whether an optimizer has moved it since."""

    def used(self) -> list[torch.Tensor]:
        self.kept = getattr(self, "kept", None) or [one.detach().clone() for one in self._weights]
        return [one + (old - one).detach() for one, old in zip(super().used(), self.kept, strict=True)]


class CachesItsBiases(LoopLayer):
    """What the first forward added is kept, and nobody asks whether a step has written it since."""

    def bias_of_each(self) -> list[torch.Tensor]:
        now = super().bias_of_each()
        self.kept = getattr(self, "kept", None) or [one.detach().clone() for one in now]
        return [one + (old - one).detach() for one, old in zip(now, self.kept, strict=True)]


class ReadsItsOwnStorage(LoopLayer):
    """The elements are in memory of their own, which no optimizer is shown: Megatron-LM's PR 6228."""

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().load(weight, bias)
        for one in self._weights:
            wrapped: Any = one
            wrapped.rowwise_data = one.detach().clone()

    def used(self) -> list[torch.Tensor]:
        mine: Any = self._weights
        return [one + (own.rowwise_data - one).detach() for one, own in zip(super().used(), mine, strict=True)]


class LearnsFromItsFirstStep(LoopLayer):
    """main_grad is written by the first backward alone: what was added to it is not told from what was zeroed."""

    def _accumulated(self, weight: torch.Tensor) -> None:
        if self._calls < 2:
            super()._accumulated(weight)


class FrozenWhenMoved(LoopLayer):
    """A cast of the module takes requires_grad away: Transformer Engine's issue 1687."""

    def to(self, *given: Any, **named: Any) -> Any:
        super().to(*given, **named)
        return self.requires_grad_(requires_grad=False)


class AnotherParameterWhenMoved(LoopLayer):
    """A cast of the module leaves parameters of its own, without what a trainer has attached to the others."""

    def to(self, *given: Any, **named: Any) -> Any:
        super().to(*given, **named)
        self._weights = torch.nn.ParameterList(one.detach().clone() for one in self._weights)
        return self


class TakesNoState(LoopLayer):
    """A state_dict is taken, and the weights are not written."""

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        del given, named


class StaysInFp32(LoopLayer):
    """It is built in fp32, and no cast reaches it."""

    def to(self, *given: Any, **named: Any) -> Any:
        del given, named
        return self


FAULTY = {
    "CachesItsBiases": ("optimizer=sgd:bias=1", "fprop", Outcome.INEXACT, "bias from before a step"),
    "CachesItsWeights": ("optimizer=sgd", "fprop", Outcome.INEXACT, "holds the weight of microbatch 0"),
    "ReadsItsOwnStorage": ("optimizer=adamw:fuse_wgrad=1", "wgrad", Outcome.PROTOCOL, "weight not moved"),
    "LearnsFromItsFirstStep": ("optimizer=sgd:fuse_wgrad=1", "wgrad", Outcome.MISPLACED, "in .grad"),
    "FrozenWhenMoved": ("moved=to_dtype", "wgrad", Outcome.MISSING, "none"),
    "AnotherParameterWhenMoved": ("moved=to_dtype", "wgrad", Outcome.MISSING, "none"),
    "TakesNoState": ("moved=load_state_dict", "fprop", Outcome.INEXACT, "negated"),
    "StaysInFp32": ("moved=to_dtype", "case", Outcome.RAISED, ""),
}


def on(text: str, layer: str) -> Verdict:
    case, target = Case.parse(text), f"test_steps:{layer}"
    return conclude(case, engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target)), CPU)


@pytest.mark.parametrize("layer", FAULTY)
def test_what_goes_wrong_only_over_steps_is_found(layer: str) -> None:
    axes, role, outcome, diagnosis = FAULTY[layer]
    findings = [one for one in on(f"torch:api=loop:{SHAPE}:{axes}", layer).findings if one.role == role]
    assert outcome in {one.outcome for one in findings}, findings
    assert diagnosis in {one.diagnosis for one in findings} or not diagnosis


@pytest.mark.parametrize("layer", FAULTY)
def test_the_same_layer_passes_a_single_step(layer: str) -> None:
    fused = ":fuse_wgrad=1" * (layer == "LearnsFromItsFirstStep")
    found = on(f"torch:api=loop:{SHAPE}:microbatches=1{fused}", layer)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_a_weight_that_is_stale_is_seen_in_the_gradient_of_x_as_well() -> None:
    found = on(f"torch:api=loop:{SHAPE}:optimizer=sgd:microbatches=3", "CachesItsWeights")
    assert {found.roles["fprop"], found.roles["dgrad"]} == {Outcome.INEXACT}
    assert found.roles["wgrad"] is Outcome.PASSED


@pytest.mark.parametrize("packed", (0, 1))
@pytest.mark.parametrize("role", ("fprop", "dgrad"))
def test_the_fault_of_a_stale_weight_has_a_packed_one_as_well(role: Any, packed: int) -> None:
    found = verdict(f"faults:api={role}_stale_weight:{SHAPE}:optimizer=sgd:single_grouped_weight={packed}")
    assert {one.diagnosis for one in found.findings} == {"holds the weight of microbatch 0"}
    assert found.roles[role] is Outcome.INEXACT


def test_a_frozen_weight_that_moves_is_told_apart_from_one_that_does_not() -> None:
    found = verdict(f"faults:api=wgrad_frozen_weight_moved:{SHAPE}:optimizer=sgd:frozen_weights=last")
    (moved,) = [one for one in found.findings if one.diagnosis == "frozen weight moved"]
    assert (moved.outcome, moved.experts) == (Outcome.UNEXPECTED, [3])


@pytest.mark.parametrize("axes", ("bias=1:frozen_bias=1", "bias=1:single_grouped_bias=1:padded_tail=zero", "bias=0"))
def test_biases_of_every_kind_are_right_over_steps(axes: str) -> None:
    found = judged_with_all_mutants(f"torch:api=loop:{SHAPE}:optimizer=adamw:microbatches=4:{axes}")
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


@pytest.mark.parametrize("frozen", (0, 1))
def test_each_step_negates_the_biases_that_learn(frozen: int) -> None:
    case = Case.parse(f"{LOOP}:optimizer=sgd:tied_weights=1:microbatches=5:frozen_bias={frozen}")
    inputs = draw(case, "normal", torch.device("cpu"))
    assert inputs.bias is not None
    signs = [1, 1, -1, -1, 1]
    assert all(torch.equal(inputs.biases[k], sign * inputs.bias) for k, sign in enumerate(signs) if not frozen)
    assert bool(inputs.biases) is not bool(frozen)


@pytest.mark.parametrize("fault", ("wgrad_weight_not_moved", "wgrad_requires_grad_lost", "fprop_stale_weight"))
def test_a_fault_of_steps_leaves_a_layer_right_where_there_are_none(fault: str) -> None:
    assert verdict(f"faults:api={fault}:{SHAPE}").outcome is Outcome.PASSED


@pytest.mark.parametrize(("axes", "asked"), (("optimizer=sgd", True), ("moved=to_dtype", True), ("bias=1", False)))
def test_faults_of_steps_are_put_into_what_has_steps(axes: str, asked: bool) -> None:  # noqa: FBT001
    assert set(STEPS) & set(needed("fast", Case.parse(f"torch:api=loop:{axes}"))) == (set(STEPS) if asked else set())


TE = "bias=1:m_splits=32,0,64:in_features=64:out_features=48:microbatches=3"
OF_TE = [
    *(f"optimizer={name}:fuse_wgrad=1" for name in ("sgd", "adamw")),
    "optimizer=adamw",
    "optimizer=sgd:recipe=Float8CurrentScaling",
    "moved=to_dtype:fuse_wgrad=1",
    "moved=load_state_dict",
]


def on_te(folder: Path, fault: str, *cases: str) -> dict[str, Verdict]:
    machine = Machine("2.20.2", variables={"FAKE_TE_FAULT": fault} if fault else {})
    return judged(folder, machine, [Case.parse(f"{case}:{TE}") for case in cases])


def test_te_is_stepped_and_moved_packed_or_not(tmp_path: Path) -> None:
    layers = (
        "te:api=module",
        "te:api=op",
        *(f"te:api={api}:single_grouped_weight=1" for api in ("module:path=native", "op")),
    )
    cases = [f"{layer}:{axes}" for layer in layers for axes in OF_TE]
    for case, found in on_te(tmp_path, "", *cases).items():
        assert (found.outcome, found.findings) == (Outcome.PASSED, []), case


FAULTS_OF_TE = {
    "weight cached": ("te:api=op:optimizer=sgd", "fprop", "holds the weight of microbatch 0"),
    "storage apart": ("te:api=op:single_grouped_weight=1:optimizer=sgd", "wgrad", "weight not moved"),
    "frozen when moved": ("te:api=module:moved=to_dtype", "wgrad", "none"),
}


@pytest.mark.parametrize("fault", FAULTS_OF_TE)
def test_what_te_might_make_of_steps_and_moves_is_found(fault: str, tmp_path: Path) -> None:
    case, role, diagnosis = FAULTS_OF_TE[fault]
    plain = case.replace(":optimizer=sgd", "").replace(":moved=to_dtype", "")
    moved, not_moved = on_te(tmp_path, fault, case, plain).values()
    assert diagnosis in {one.diagnosis for one in moved.findings if one.role == role}, moved.findings
    assert not_moved.outcome is Outcome.PASSED


def test_gradients_and_first_microbatches_are_counted_from_the_last_step() -> None:
    case = Case.parse("torch:api=loop:optimizer=sgd:microbatches=5:tied_weights=1")
    assert [stepped_after(case, k) for k in range(5)] == [False, True, False, True, False]
    assert [since_step(case, k) for k in range(5)] == [0, 0, 2, 2, 4]
    first = Case.parse("torch:api=loop:optimizer=sgd:microbatches=3:fuse_wgrad=1:is_first_microbatch=first")
    assert [is_first(first, k) for k in range(3)] == [True] * 3


@pytest.mark.parametrize("fill", ("exact", "range"))
def test_integers_of_each_step_are_others_but_for_what_is_frozen(fill: Any) -> None:
    case = Case.parse(f"torch:api=loop:{SHAPE}:optimizer=sgd:microbatches=3:frozen_weights=first")
    inputs = draw(case, fill, torch.device("cpu"))
    first, second, third = (inputs.weight_of(k) for k in range(3))
    assert torch.equal(first[0], second[0])
    assert not any(torch.equal(*both) for both in ((first[1:], second[1:]), (second[1:], third[1:])))


@pytest.mark.parametrize("name", ("sgd", "adamw"))
def test_a_step_of_an_fp32_master_is_not_lost_in_the_parameter_that_rounds_it(name: str) -> None:
    case = Case.parse(f"torch:api=loop:{SHAPE}:optimizer={name}:fuse_wgrad=1")
    inputs = draw(case, "normal", torch.device("cpu"))
    weights: list[Any] = [torch.nn.Parameter(one.clone()) for one in inputs.weight]
    stepping = Stepping(case, weights, inputs, "normal")
    for _ in range(8):  # each of less than half the spacing of bf16
        for weight in weights:
            weight.main_grad = torch.full(weight.shape, 2.0**-9)
        moved = stepping.step()
        stepping.zero()
    assert all(bool((weight != first).any()) for weight, first in zip(weights, inputs.weight, strict=True))
    assert moved.before is not None
    assert torch.equal(torch.stack(weights), moved.before)
    assert not any(weight.main_grad.any() for weight in weights)


EXCLUDED = {
    f"{LOOP}:optimizer=sgd:microbatches=1": "step-needs-a-next-microbatch",
    f"{LOOP}:optimizer=sgd:tied_weights=1:microbatches=2": "step-needs-a-next-microbatch",
    f"{LOOP}:optimizer=adamw:frozen_weights=all": "step-needs-a-weight",
    "te:api=module:recipe=Float8CurrentScaling:quantized_model_init=1:optimizer=sgd:m_splits=16,16": (
        "kept-quantised-is-moved-by-its-own-rules"
    ),
    "te:api=module:recipe=Float8CurrentScaling:quantized_model_init=1:moved=to_dtype:m_splits=16,16": (
        "kept-quantised-is-moved-by-its-own-rules"
    ),
    f"{LOOP}:moved=to_dtype:dtype=fp32": "to-dtype-is-to-a-narrower-one",
    "torch:api=op_mlp:optimizer=sgd": "chain-is-not-moved",
    "torch:api=op_mlp:moved=load_state_dict": "chain-is-not-moved",
    f"{LOOP}:cuda_graph=torch:optimizer=sgd": "captured-alone",
    f"{LOOP}:retain_graph=1:optimizer=sgd": "retained-alone",
}


@pytest.mark.parametrize(("text", "constraint"), EXCLUDED.items(), ids=EXCLUDED)
def test_what_is_not_worked_out_of_steps_is_excluded(text: str, constraint: str) -> None:
    point = matrix.excluded(Case.parse(text))
    assert point is not None
    assert point.constraint == constraint


SAID = {
    "optimizer=sgd:microbatches=3": "after microbatch 0 and 1 torch.optim.SGD steps each weight",
    "optimizer=adamw:fuse_wgrad=1": "torch.optim.AdamW steps an fp32 master of each weight",
    "optimizer=sgd:fuse_wgrad=1": "after each step main_grad is zeroed, and .grad None",
    "moved=to_dtype": "built in fp32",
    "moved=load_state_dict": "it holds other weights",
}


@pytest.mark.parametrize(("axes", "said"), SAID.items(), ids=SAID)
def test_show_says_what_happens_between_microbatches(axes: str, said: str) -> None:
    assert said in "\n".join(in_words(Case.parse(f"te:api=module:{axes}")))


def test_the_matrix_steps_has_both_axes_of_every_layer_but_a_chain() -> None:
    providers = [plugins.candidate(provider) for provider in ("te", "torch")]
    cases = [one for one in matrix.enumerate_cases(matrix.load("steps"), providers, seed=0) if isinstance(one, Case)]
    layers = {("te", "module"), ("te", "op"), ("torch", "loop"), ("torch", "grouped_mm")}
    for values in ({"sgd", "adamw"}, {"to_dtype", "load_state_dict"}):
        axis = "optimizer" if "sgd" in values else "moved"
        asked = {(one.provider, one.api, getattr(one, axis)) for one in cases}
        assert asked >= {(*layer, value) for layer in layers for value in values}
