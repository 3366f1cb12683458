"""Is each run of a case judged, and what differs between them counted? Determinism, and faults that come and go."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from in_process import CPU, engine, observed
from te_scripts import written
from test_mutants import judged as judged_with_all_mutants
from test_te_providers import Machine, judged

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.compute.faults.chance import CHANCE, LUCK
from gradcheck_cli.compute.providers.torch_layer import add_to_main_grad
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.compute.runs import digest, ulps
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import in_words
from gradcheck_cli.judge.repeats import wilson
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.chances import CHANCES
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.observation import FILLS, INFINITE, Observation
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reproduce.wanted import Unscriptable

SHAPE = "m_splits=5,0,9,7:in_features=16:out_features=24"
TWICE = "repeat=3:deterministic=1"

RIGHT = [
    f"torch:api=loop:{TWICE}:bias=1:{SHAPE}",
    f"torch:api=loop:fuse_wgrad=1:zero_out_wgrad=1:{TWICE}:{SHAPE}",
    f"torch:api=loop:fuse_wgrad=1:is_first_microbatch=first:{TWICE}:bias=1:single_grouped_bias=1:{SHAPE}",
    f"torch:api=loop:delay_wgrad_compute=1:tied_weights=1:{TWICE}:{SHAPE}",
    f"torch:api=loop:recompute=reentrant:inference=eval:{TWICE}:frozen_weights=last:{SHAPE}",
    f"torch:api=loop:{TWICE}:padded_tail=nan:{SHAPE}",
    f"torch:api=op_mlp:{TWICE}:m_splits=16,0,32:in_features=32:out_features=32",
    f"torch:api=grouped_mm:{TWICE}:m_splits=16,0,32:in_features=16:out_features=24",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_deterministic_layer_passes_and_every_fault_is_seen(text: str) -> None:
    found = judged_with_all_mutants(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert [name for name in found.mutants.survived if "epsilon" not in name] == []
    assert found.notes[-1].startswith("repeat=3: all runs left the same bits; a share of runs below 66% that differ")


def test_a_later_run_that_is_as_the_first_is_counted_and_not_kept() -> None:
    once, thrice = (observed(f"torch:api=loop:{how}bias=1:{SHAPE}") for how in ("", "repeat=3:"))
    assert [one.phases for one in thrice.channels] == [one.phases for one in once.channels]
    for channel in thrice.channels:
        told = {one.role: (one.repeats, one.differing, one.distinct, one.largest_ulps) for one in channel.repeated}
        assert told == dict.fromkeys(("fprop", "dgrad", "wgrad", "bgrad"), (2, 0, 1, 0.0))


def lucky(api: str, how: str, seed: int) -> Verdict:
    LUCK.seed(seed)
    case = Case.parse(f"faults:api={api}:{how}{SHAPE}")
    return conclude(case, engine(plugins.target("faults", api)).run(pipeline.job(case)), CPU)


def test_a_race_is_missed_by_a_run_that_is_lucky_and_found_by_eight() -> None:
    alone = [lucky("bgrad_lost_update", "bias=1:", seed).outcome for seed in range(1, 21)]
    missed = (1 - CHANCES["bgrad_lost_update"].rate) ** len(FILLS)
    assert alone.count(Outcome.PASSED) / len(alone) == pytest.approx(missed, abs=0.25)  # 0.42
    eight = [lucky("bgrad_lost_update", "repeat=8:bias=1:", seed) for seed in range(1, 9)]
    assert [one.outcome in {Outcome.INEXACT, Outcome.INACCURATE} for one in eight] == [True] * 8
    assert {role for one in eight for role, outcome in one.roles.items() if outcome is not Outcome.PASSED} == {"bgrad"}
    assert all("bgrad is not the same in all runs, and no determinism was asked for" in one.notes[-1] for one in eight)
    assert "low-precision accumulation" not in {finding.diagnosis for one in eight for finding in one.findings}


def test_a_run_that_is_wrong_alone_is_named() -> None:
    found = lucky("bgrad_lost_update", "repeat=8:bias=1:", 6)  # its 5th of 24 layers, and its 17th
    (exact,) = (one for one in found.findings if one.outcome is Outcome.INEXACT and "exact data" in one.why)
    assert "exact data, repeat 4)" in exact.why


def test_another_order_is_right_and_told_beside_the_verdict() -> None:
    found = lucky("wgrad_other_order", "repeat=8:dtype=fp32:", 6)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    said = found.notes[-1]
    assert "repeat=8: wgrad is not the same in all runs" in said
    assert "of 7 repeats unlike the first on random data" in said
    assert "2 distinct results" in said
    assert "exact data" not in said


def test_another_order_is_a_fault_where_determinism_was_asked_for() -> None:
    found = lucky("wgrad_other_order", "deterministic=1:repeat=8:dtype=fp32:", 6)
    (only,) = found.findings
    assert (found.outcome, only.role, only.diagnosis) == (Outcome.NONDETERMINISTIC, "wgrad", "differs between runs")
    assert only.experts == [0, 1, 2, 3]
    assert found.roles == {
        "fprop": Outcome.PASSED,
        "dgrad": Outcome.PASSED,
        "wgrad": Outcome.NONDETERMINISTIC,
    }
    assert "expected the same bits in each of 8 runs" in only.why
    assert "ulp" in only.why


def test_every_fault_that_comes_and_goes_has_a_layer() -> None:
    assert CHANCE.keys() == CHANCES.keys() <= set(plugins.candidate("faults").apis)


class Numbered(LoopLayer):
    """Knows which of the layers built for a case it is; on each of three kinds of data one is wrong, the second."""

    built = 0

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        type(self).built += 1
        self.second = self.built % case.repeat == 2 % case.repeat


class RaisesTheSecondTime(Numbered):
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        if self.second:
            raise ArithmeticError("once too often")
        return super().forward(x, m_splits)


class SpoilsAWeightTheSecondTime(Numbered):
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        if self.second:
            self._weights[0].data[0, 0] += 1
        return y


class LosesAGradientTheSecondTime(Numbered):
    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        if self.second:
            self._weights[-1].register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))


class ShortTheSecondTime(Numbered):
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        return y[:-1] if self.second else y


class ShortTheFirstTime(Numbered):
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        return y[:-1] if self.built % self._case.repeat == 1 else y


class OtherDummies(Numbered):
    """Beside main_grad it leaves a dummy, in which there is something else each time."""

    def _accumulated(self, weight: torch.Tensor) -> None:
        add_to_main_grad(weight)
        weight.grad = torch.full_like(weight, float(self.built))


class DummyNotZeroTheSecondTime(Numbered):
    def _accumulated(self, weight: torch.Tensor) -> None:
        add_to_main_grad(weight)
        weight.grad = torch.full_like(weight, float(self.second))


def seen_on(text: str, layer: type[Numbered]) -> Observation:
    layer.built = 0
    case, target = Case.parse(text), f"test_repeat:{layer.__name__}"
    return engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target))


def on(text: str, layer: type[Numbered]) -> Verdict:
    return conclude(Case.parse(text), seen_on(text, layer), CPU)


LATER: dict[type[Numbered], tuple[str, Outcome, str]] = {
    RaisesTheSecondTime: ("", Outcome.RAISED, "forward of microbatch 0, exact data, repeat 1"),
    # Where a weight is 2^40 one more is nothing.
    SpoilsAWeightTheSecondTime: ("", Outcome.UNEXPECTED, "after the forward of microbatch 0, range data, repeat 1)"),
    LosesAGradientTheSecondTime: ("", Outcome.MISSING, "repeat 1)"),
    ShortTheSecondTime: ("", Outcome.PROTOCOL, "after the forward of microbatch 0, exact data, repeat 1)"),
    ShortTheFirstTime: ("", Outcome.PROTOCOL, "after the forward of microbatch 0, exact data)"),
    DummyNotZeroTheSecondTime: (
        "fuse_wgrad=1:microbatches=1:zero_out_wgrad=1:",
        Outcome.PROTOCOL,
        "exact data, repeat 1)",
    ),
}


@pytest.mark.parametrize("layer", LATER, ids=lambda layer: layer.__name__)
def test_what_goes_wrong_in_one_run_alone_is_found_and_that_run_named(layer: type[Numbered]) -> None:
    how, outcome, said = LATER[layer]
    found = on(f"torch:api=loop:{how}repeat=3:{SHAPE}", layer)
    assert not found.outcome.green
    assert any(said in one.why for one in found.findings if one.outcome is outcome), found.findings


def test_what_nobody_may_read_may_differ() -> None:
    found = on(f"torch:api=loop:fuse_wgrad=1:{TWICE}:{SHAPE}:microbatches=1", OtherDummies)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


def test_what_a_dummy_resembles_is_looked_into_only_where_it_must_be_zero() -> None:
    fused = f"torch:api=loop:fuse_wgrad=1:{SHAPE}:microbatches=1"
    explained = {
        how: {
            name
            for channel in seen_on(f"{fused}{how}", OtherDummies).channels
            for phase in channel.phases
            for slot in phase.slots
            if slot.buffer == "grad" and slot.role == "wgrad" and not phase.mutant
            for name in slot.residuals
        }
        for how in ("", ":zero_out_wgrad=1")
    }
    assert not any(name.startswith("expert=") for name in explained[""])
    assert any(name.startswith("expert=") for name in explained[":zero_out_wgrad=1"])


def test_a_gradient_that_comes_and_goes_is_no_number_of_ulp_away() -> None:
    found = on(f"torch:api=loop:{TWICE}:{SHAPE}", LosesAGradientTheSecondTime)
    (told,) = (one for one in found.findings if one.outcome is Outcome.NONDETERMINISTIC)
    assert "1 of 2 repeats unlike the first" in told.why
    assert "by more than a finite number" in told.why
    assert told.experts == [3]


# R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
@pytest.mark.parametrize(
    ("hits", "tries", "interval"),
    ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))),
)
def test_the_interval_of_a_rate_is_that_of_the_literature(hits: int, tries: int, interval: tuple[float, float]) -> None:
    assert wilson(hits, tries) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32, torch.float64))
def test_units_in_the_last_place_are_counted_across_zero_and_of_what_is_finite(dtype: torch.dtype) -> None:
    def one(number: float) -> torch.Tensor:
        return torch.tensor([0.5, number], dtype=dtype)

    above = 1 + torch.finfo(dtype).eps
    least = float(torch.finfo(dtype).smallest_normal)
    assert ulps(one(1.0), one(1.0)) == 0
    assert ulps(one(1.0), one(above)) == ulps(one(-1.0), one(-above)) == 1
    assert ulps(one(0.0), one(-0.0)) == 0
    assert ulps(one(least), one(-least)) == pytest.approx(2 * ulps(one(least), one(0.0)), rel=1e-6)
    assert ulps(one(math.nan), one(math.nan)) == 0
    assert ulps(one(math.nan), one(1.0)) == ulps(one(1.0), one(math.inf)) == ulps(one(1.0), None) == INFINITE


def test_two_nan_are_the_same_and_two_zeros_are_not() -> None:
    bits = torch.tensor([0x7FC00000, 0x7F800001, -1], dtype=torch.int32)
    nans = [digest(bits[i : i + 1].view(torch.float32)) for i in range(3)]
    assert len(set(nans)) == 1
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


class Determined(LoopLayer):
    """Raises unless torch was asked for determinism, in its forward and in its backward, and memory left as it was."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        def asked(grad: torch.Tensor | None = None) -> None:
            memory: Any = torch.utils.deterministic
            assert torch.are_deterministic_algorithms_enabled() == self._case.deterministic
            assert memory.fill_uninitialized_memory != self._case.deterministic

        asked()
        y = super().forward(x, m_splits)
        y.register_hook(asked)
        return y


@pytest.mark.parametrize("how", ("", "deterministic=1:"))
def test_determinism_is_asked_of_torch_where_the_case_asks_and_no_longer(how: str) -> None:
    case, target = Case.parse(f"torch:api=loop:{how}{SHAPE}"), "test_repeat:Determined"
    seen = engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target))
    assert seen.raised is None
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_worker_of_its_own_has_the_variables_of_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")
    asked = {text: pipeline.job(Case.parse(text)).switches for text in ("te:api=op", "te:api=op:deterministic=1")}
    assert asked == {"te:api=op": {}, "te:api=op:deterministic=1": {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}}
    torch_too = pipeline.job(Case.parse("torch:api=loop:deterministic=1"))
    assert torch_too.switches == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


TE = "m_splits=32,0,64:in_features=64:out_features=48"
CLOSED = {
    "te:api=module:path=native:deterministic=1:repeat=2": Outcome.REFUSED,
    "te:api=module:path=legacy:deterministic=1:repeat=2": Outcome.PASSED,
    "te:api=op:deterministic=1": Outcome.REFUSED,
    "te:api=op:deterministic=1:dtype=fp32": Outcome.REFUSED,
    "te:api=op:repeat=2": Outcome.PASSED,
}


@pytest.mark.parametrize("version", ("2.17.1", "2.20.2"))
def test_te_refuses_a_bias_gradient_that_it_sums_in_any_order(version: str, tmp_path: Path) -> None:
    cases = {str(Case.parse(f"{text}:bias=1:{TE}")): outcome for text, outcome in CLOSED.items()}
    found = judged(tmp_path, Machine(version), [Case.parse(text) for text in cases])
    assert {text: one.outcome for text, one in found.items()} == cases
    said = [one.findings[0] for one in found.values() if one.outcome is Outcome.REFUSED]
    assert {one.diagnosis for one in said} == {"dbias-is-not-deterministic"}
    assert all("TransformerEngine PR 2885" in one.why and "deterministic=0 or bias=0" in one.unlock for one in said)


def test_te_without_a_bias_is_deterministic(tmp_path: Path) -> None:
    cases = [Case.parse(f"te:api={api}:{TWICE}:{TE}") for api in ("module:path=native", "op")]
    assert {one.outcome for one in judged(tmp_path, Machine("2.20.2"), cases).values()} == {Outcome.PASSED}


class NotForCompilers(LoopLayer):
    """Keeps torch.compile away."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        return super().forward(x, m_splits)


class OtherWhenCompiled(LoopLayer):
    """Forgets the last expert's weight where it is compiled."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        y = super().forward(x, m_splits)
        return y * 2 if torch.compiler.is_compiling() else y


def compiled(layer: str, how: str) -> Verdict:
    case, target = Case.parse(f"torch:api=loop:{how}{SHAPE}"), f"test_repeat:{layer}"
    return conclude(case, engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target)), CPU)


def test_what_is_wrong_only_when_compiled_is_found() -> None:
    assert compiled("OtherWhenCompiled", "").outcome is Outcome.PASSED
    assert compiled("OtherWhenCompiled", "compile=1:").roles["fprop"] is Outcome.INEXACT


def test_what_nothing_was_compiled_of_is_not_the_case() -> None:
    found = compiled("NotForCompilers", "compile=1:")
    assert (found.outcome, found.findings[0].diagnosis) == (Outcome.NOT_THE_CASE, "compile")


@pytest.mark.parametrize("how", ("loop:fuse_wgrad=1:recompute=nonreentrant:", "grouped_mm:"))
def test_a_right_layer_is_right_when_compiled(how: str) -> None:
    found = judged_with_all_mutants(f"torch:api={how}compile=1:m_splits=16,0,32:in_features=16:out_features=24")
    assert (found.outcome, found.findings, found.effective["compile"]) == (Outcome.PASSED, [], 1)


def test_te_is_not_compiled() -> None:
    point = matrix.excluded(Case.parse("te:api=module:compile=1"))
    assert point is not None
    assert point.constraint == "te-is-not-compiled"


def test_an_observation_without_repeats_is_judged_as_before() -> None:
    text = f"torch:api=loop:repeat=3:{SHAPE}"
    older = [msgspec.structs.replace(one, repeated=[]) for one in observed(text).channels]
    seen: Observation = msgspec.structs.replace(observed(text), channels=older)
    found = conclude(Case.parse(text), seen, Environment())
    assert (found.outcome, found.notes) == (Outcome.PASSED, [])


def test_what_takes_luck_has_no_script() -> None:
    failure = Failure("wgrad", Outcome.NONDETERMINISTIC, "differs between runs")
    with pytest.raises(Unscriptable, match="it takes luck, and a script must fail each time"):
        written(f"te:api=op:deterministic=1:repeat=8:{TE}", failure)


SAID = {
    "torch:api=loop:compile=1": "compiled by torch.compile(backend='aot_eager')",
    "torch:api=loop:deterministic=1": "torch.use_deterministic_algorithms(True)",
    "te:api=op:deterministic=1": "determinism is asked for, by NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
    "te:api=op:repeat=8": "all of it is done 8 times on the same data",
}


@pytest.mark.parametrize(("case", "said"), SAID.items(), ids=SAID)
def test_show_says_what_is_asked_for(case: str, said: str) -> None:
    assert said in "\n".join(in_words(Case.parse(case)))
