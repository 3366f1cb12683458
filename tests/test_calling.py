"""Is a layer judged rightly however it is called: recomputed, under autocast, with an inference in between?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from in_process import CPU, engine
from test_mutants import judged as judged_with_all_mutants
from test_te_providers import Machine, judged

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import in_words
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.verdict import Outcome, Verdict

SHAPE = "m_splits=5,0,9,3:in_features=16:out_features=24"
LOOP = f"torch:api=loop:bias=1:{SHAPE}"

RIGHT = [
    *(f"{LOOP}:recompute={how}:fuse_wgrad={fused}" for how in ("reentrant", "nonreentrant") for fused in (0, 1)),
    f"{LOOP}:recompute=reentrant:fuse_wgrad=1:is_first_microbatch=first:microbatches=3",
    f"{LOOP}:recompute=reentrant:delay_wgrad_compute=1",
    f"{LOOP}:recompute=nonreentrant:tied_weights=1",
    *(f"{LOOP}:inference={how}:delay_wgrad_compute={late}" for how in ("no_grad", "eval") for late in (0, 1)),
    f"{LOOP}:inference=eval:recompute=reentrant:fuse_wgrad=1:is_first_microbatch=first",
    f"{LOOP}:autocast=1:dtype=fp16:fuse_wgrad=1",
    f"{LOOP}:autocast=1:recompute=nonreentrant:inference=no_grad:single_grouped_weight=1",
    *(
        f"{LOOP}:pipelined=1:fuse_wgrad={fused}:{tail}"
        for fused, tail in (
            (0, "microbatches=2:inference=eval"),
            (1, "microbatches=3:recompute=reentrant"),
            (1, "microbatches=4:delay_wgrad_compute=1"),
            (0, "microbatches=3:delay_wgrad_compute=1:autocast=1"),
            (1, "microbatches=2:recompute=nonreentrant:overwrite_main_grad=all:single_grouped_weight=1"),
        )
    ),
    *(
        f"{LOOP}:retain_graph=1:fuse_wgrad={fused}:inference={between}:microbatches={several}:{tail}"
        for fused, between, several, tail in (
            (0, "none", 2, "grad_output=expanded"),
            (1, "eval", 3, "main_grad_dtype=bf16"),
            (1, "no_grad", 4, "overwrite_main_grad=some:autocast=1"),
            (0, "none", 2, "frozen_input=1:dtype=fp32:single_grouped_weight=1"),
        )
    ),
    "torch:api=loop:recompute=reentrant:recipe=Float8CurrentScaling:m_splits=128,0,64:in_features=128:out_features=128",
    "torch:api=grouped_mm:recompute=reentrant:inference=eval:m_splits=16,0,32:in_features=16:out_features=24",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_layer_passes_and_every_fault_is_seen(text: str) -> None:
    found = judged_with_all_mutants(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert found.mutants.survived == []


class KeepsItsInput(LoopLayer):
    """x is kept on the layer and not with the graph: another forward takes its place."""

    def keep(self, x: torch.Tensor) -> None:
        """Of a forward."""
        self.kept = x

    def taken(self, rows: int) -> torch.Tensor:
        """Of a backward, so many rows."""
        del rows
        return self.kept

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        self.keep(x.detach())
        weights, layer = list(self._weights), self

        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
                ctx.weights = weights
                return torch.cat([r @ w.T for r, w in zip(x.split(list(m_splits)), weights, strict=True)])

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:
                parts = grads[0].split(list(m_splits))
                rows = layer.taken(len(grads[0])).split(list(m_splits))
                dgrad = torch.cat([g @ w for g, w in zip(parts, ctx.weights, strict=True)])
                return dgrad, *(g.T @ r for g, r in zip(parts, rows, strict=True))

        y: torch.Tensor = Linear.apply(x, *weights)  # type: ignore[no-untyped-call]
        return y


class KeepsItsInputsOnAStack(KeepsItsInput):
    """What was kept last is taken first: right where each backward follows its own forward."""

    def keep(self, x: torch.Tensor) -> None:
        self.stack = [*getattr(self, "stack", []), x]

    def taken(self, rows: int) -> torch.Tensor:
        return torch.nn.functional.pad(self.stack.pop(), (0, 0, 0, rows))[:rows]


class StaysInEvaluation(LoopLayer):
    """What was evaluated once asks for no gradient any more."""

    def train(self, mode: bool = True) -> StaysInEvaluation:  # noqa: FBT001, FBT002
        if not mode:
            for weight in self._weights:
                weight.requires_grad = False
        super().train(mode)
        return self


class OtherTheSecondTime(LoopLayer):
    """A forward that is run again is not what it was: its rows come in another order."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        again = torch.is_grad_enabled() and x.requires_grad and getattr(self, "seen", None) == x.data_ptr()
        self.seen = x.data_ptr()
        return super().forward(x.flip(0) if again else x, m_splits)


class DeafToAutocast(LoopLayer):
    """It multiplies in fp32, whatever autocast says."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            parts = zip(x.split(list(m_splits)), self._weights, strict=True)
            return torch.cat([torch.nn.functional.linear(r, w.float()) for r, w in parts])


class LetsGoOfItsInput(KeepsItsInput):
    """x is set to zero once a backward has read it: a second one through the same graph has nothing to multiply."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        self.kept = self.kept.clone()
        if y.grad_fn is not None:
            y.grad_fn.register_hook(lambda *_: self._let_go())
        return y

    def _let_go(self) -> None:
        self.kept.zero_()


FAULTY = {
    "x let go of after a backward": (
        "LetsGoOfItsInput",
        f"torch:api=loop:retain_graph=1:{SHAPE}",
        "wgrad",
        Outcome.INEXACT,
    ),
    "x on a stack": ("KeepsItsInputsOnAStack", f"torch:api=loop:pipelined=1:{SHAPE}", "wgrad", Outcome.INEXACT),
    "x kept on the layer": ("KeepsItsInput", f"torch:api=loop:inference=no_grad:{SHAPE}", "wgrad", Outcome.INEXACT),
    "an evaluation that stays": (
        "StaysInEvaluation",
        f"torch:api=loop:inference=eval:{SHAPE}",
        "wgrad",
        Outcome.MISSING,
    ),
    "another forward the second time": (
        "OtherTheSecondTime",
        f"torch:api=loop:recompute=reentrant:{SHAPE}",
        "wgrad",
        Outcome.INEXACT,
    ),
    "autocast unheard": ("DeafToAutocast", f"torch:api=loop:autocast=1:{SHAPE}", "fprop", Outcome.PROTOCOL),
}


def on(text: str, layer: str) -> Verdict:
    case, target = Case.parse(text), f"test_calling:{layer}"
    return conclude(case, engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target)), CPU)


@pytest.mark.parametrize("name", FAULTY)
def test_what_goes_wrong_only_when_called_so_is_found(name: str) -> None:
    layer, text, role, outcome = FAULTY[name]
    found = on(text, layer)
    assert outcome in {one.outcome for one in found.findings if one.role == role}, found.findings


@pytest.mark.parametrize(
    "name",
    (
        "x on a stack",
        "x let go of after a backward",
        "x kept on the layer",
        "an evaluation that stays",
        "another forward the second time",
    ),
)
def test_the_same_layer_passes_when_called_plainly(name: str) -> None:
    found = on(f"torch:api=loop:{SHAPE}", FAULTY[name][0])
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_x_that_is_not_kept_with_its_graph_holds_the_inference() -> None:
    layer, text, *_ = FAULTY["x kept on the layer"]
    named = {one.diagnosis for one in on(text, layer).findings if one.role == "wgrad"}
    assert "negated" in named or any("scaled by -1" in one for one in named), named


@pytest.mark.parametrize("what", ("stream=side", "stream=backward", "cuda_graph=torch"))
def test_what_is_cudas_is_refused_elsewhere_with_what_opens_it(what: str) -> None:
    case = Case.parse(f"{LOOP}:{what}")
    found = conclude(case, engine(pipeline.job(case).target).run(pipeline.job(case)), CPU)
    assert found.outcome is Outcome.REFUSED
    assert (found.findings[0].diagnosis, found.findings[0].unlock) == ("streams-need-cuda", "a CUDA device")


def test_a_retained_graph_is_refused_by_te_which_goes_through_one_once(tmp_path: Path) -> None:
    cases = [Case.parse(f"te:api={api}:retain_graph=1:{TE}") for api in ("module", "op")]
    for found in judged(tmp_path, Machine("2.20.2"), cases).values():
        assert found.outcome is Outcome.REFUSED
        assert found.findings[0].diagnosis == "te-goes-through-a-graph-once"
        assert found.findings[0].unlock == "retain_graph=0"


TE = "bias=1:m_splits=32,0,64:in_features=64:out_features=48:microbatches=3"


def test_te_recomputes_by_itself_and_the_second_forward_tells_the_path(tmp_path: Path) -> None:
    cases = [
        f"te:api=module:path=native:recompute={how}:{tail}{TE}"
        for how in ("te", "reentrant")
        for tail in ("", "inference=eval:fuse_wgrad=1:", "recipe=Float8CurrentScaling:")
    ]
    for case, found in judged(tmp_path, Machine("2.20.2"), [Case.parse(case) for case in cases]).items():
        assert (found.outcome, found.findings) == (Outcome.PASSED, []), case
        assert found.effective["path"] == "native"


EXCLUDED = {
    "torch:api=loop:recompute=te": "te-has-its-own-ways",
    "torch:api=loop:cuda_graph=te": "te-has-its-own-ways",
    f"{LOOP}:recompute=reentrant:frozen_input=1": "checkpoint-needs-an-input",
    f"{LOOP}:recompute=reentrant:tied_weights=1": "reentrant-uses-go-one-by-one",
    f"{LOOP}:recompute=nonreentrant:delay_wgrad_compute=1": "recomputed-calls-are-not-counted",
    "torch:api=loop:recompute=reentrant:recipe=DelayedScaling": "scales-are-not-recomputed",
    "torch:api=loop:inference=eval:recipe=DelayedScaling": "scales-see-an-inference",
    f"{LOOP}:autocast=1:dtype=fp32": "autocast-to-a-narrower-dtype",
    f"{LOOP}:stream=backward_dw": "backward-dw-on-a-stream",
    f"{LOOP}:cuda_graph=torch:tied_weights=1": "captured-alone",
    f"{LOOP}:pipelined=1:microbatches=1": "a-pipeline-of-two",
    f"{LOOP}:pipelined=1:optimizer=sgd": "pipelined-alone",
    f"{LOOP}:cuda_graph=torch:pipelined=1": "captured-alone",
    f"{LOOP}:retain_graph=1:microbatches=1": "a-graph-for-two",
    f"{LOOP}:retain_graph=1:tied_weights=1": "retained-alone",
    "faults:api=wgrad_doubled:retain_graph=1": "retained-alone",
    "torch:api=op_mlp:recompute=nonreentrant": "chain-is-called-plainly",
}


@pytest.mark.parametrize(("text", "constraint"), EXCLUDED.items(), ids=EXCLUDED)
def test_what_is_nobodys_contract_is_excluded(text: str, constraint: str) -> None:
    point = matrix.excluded(Case.parse(text))
    assert point is not None
    assert point.constraint == constraint


SAID = {
    "recompute=te": "run again in its backward, by transformer_engine.pytorch.checkpoint",
    "inference=eval": "another forward is run without gradients, in eval mode, on -x",
    "inference=no_grad": "no gradient comes from it, and its own output is not judged",
    "stream=backward": "each backward runs on a CUDA stream of its own",
    "cuda_graph=te": "by transformer_engine.pytorch.make_graphed_callables, and replayed",
    "pipelined=1": "two forwards, then the backward of each by itself, the earlier one first",
    "retain_graph=1": "in pairs of one x, one forward and one output",
    "autocast=1": "x is fp32, and each forward runs under torch.autocast of bf16",
}


@pytest.mark.parametrize(("axis", "said"), SAID.items(), ids=SAID)
def test_show_says_what_is_wrapped_around_the_layer(axis: str, said: str) -> None:
    assert said in "\n".join(in_words(Case.parse(f"te:api=module:{axis}")))


@pytest.mark.parametrize("name", ("calling", "streams", "repeat"))
def test_every_built_in_layer_has_cases_of_its_own(name: str) -> None:
    providers = [plugins.candidate(provider) for provider in ("te", "torch")]
    cases = [one for one in matrix.enumerate_cases(matrix.load(name), providers, seed=0) if isinstance(one, Case)]
    assert {(one.provider, one.api) for one in cases} == {
        *(("te", api) for api in ("module", "op", "op_mlp")),
        *(("torch", api) for api in ("loop", "grouped_mm", "op_mlp")),
    }


KEPT: list[Exception] = []


def hooked() -> Iterator[None]:
    """Until it is gone nothing that is saved for a backward can be read."""
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda _: torch.mm(*[torch.ones(2)] * 2)):
        yield


class RaisesUnderHooks(LoopLayer):
    """As torch's checkpoint did before pytorch PR 184018, its frame holds hooks; and somebody keeps error and frame."""

    def forward(self, x: torch.Tensor, _: object) -> torch.Tensor:
        held = hooked()
        next(held)
        try:
            return torch.mm(x, x)
        except Exception as error:
            KEPT.append(error)
            raise


def test_what_a_forward_that_raised_has_hooked_reaches_no_later_case() -> None:
    shape, target = "m_splits=5,0,9,7:in_features=16:out_features=24", "test_calling:RaisesUnderHooks"
    first, later = (pipeline.job(Case.parse(f"torch:api=loop:{which}:{shape}")) for which in ("seed=2", "seed=3"))
    assert engine(target).run(msgspec.structs.replace(first, target=target)).ending == "raised"
    seen = engine(later.target).run(later)
    assert (seen.ending, seen.raised) == ("finished", None)
