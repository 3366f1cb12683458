"""Are weights that are kept quantised judged rightly? A stand-in for Transformer Engine, in real workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_te_providers import STAND_IN, Machine, finding, judged

from gradcheck_cli.compute import quantised
from gradcheck_cli.compute.attached import named
from gradcheck_cli.compute.inputs import draw
from gradcheck_cli.compute.lent import Loans, loaded
from gradcheck_cli.compute.reference import prepare
from gradcheck_cli.judge import contract
from gradcheck_cli.judge.effective import ran_all_the_same
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.capability import closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import ChannelSeen, Observation, PhaseSeen
from gradcheck_cli.records.verdict import Outcome

SHAPE = "m_splits=32,0,64:in_features=64:out_features=48:microbatches=3"
KEPT = f"quantized_model_init=1:{SHAPE}"
NATIVE = "te:api=module:path=native:single_grouped_weight=1"
DEVICE = torch.device("cpu")

RIGHT = {
    "2.17.1": (
        f"te:api=module:recipe=DelayedScaling:{KEPT}",
        f"te:api=module:path=legacy:recipe=Float8CurrentScaling:fuse_wgrad=1:bias=1:{KEPT}",
        f"te:api=op:recipe=Float8CurrentScaling:dtype=fp16:{KEPT}",
        f"te:api=module:recipe=Float8CurrentScaling:{SHAPE}",
    ),
    "2.20.2": (
        f"te:api=module:recipe=DelayedScaling:dtype=fp32:fuse_wgrad=1:{KEPT}",
        f"{NATIVE}:recipe=Float8CurrentScaling:{KEPT}",
        f"{NATIVE}:recipe=Float8CurrentScaling:fuse_wgrad=1:dtype=fp16:{KEPT}",
        f"te:api=op:recipe=DelayedScaling:{KEPT}",
        f"te:api=op:single_grouped_weight=1:recipe=Float8CurrentScaling:fuse_wgrad=1:{KEPT}",
    ),
}


@pytest.mark.parametrize("version", RIGHT)
def test_weights_that_are_kept_quantised_are_loaded_and_judged_as_others_are(tmp_path: Path, version: str) -> None:
    found = judged(tmp_path, Machine(version), [Case.parse(case) for case in RIGHT[version]])
    for case, verdict in found.items():
        assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, []), case
        assert verdict.channels["exact"] == "judged"
        assert verdict.effective["quantized_model_init"] == int("quantized_model_init=1" in case)


@pytest.mark.parametrize("api", ("op", "module"))
def test_a_grad_output_whose_strides_nobody_asks_is_named(tmp_path: Path, api: str) -> None:
    machine = Machine("2.20.2", variables={"FAKE_TE_FAULT": "grad_output as it lies"})
    case = f"te:api={api}:recipe=Float8CurrentScaling:bias=1:{SHAPE}"
    (right, wrong) = judged(
        tmp_path, machine, [Case.parse(f"{case}:grad_output={layout}") for layout in ("random", "transposed")]
    ).values()
    assert (right.outcome, right.findings) == (Outcome.PASSED, [])
    named = {(one.slot, one.outcome, one.diagnosis) for one in wrong.findings}
    said = "grad_output read as if contiguous"
    assert {(slot, Outcome.INEXACT, said) for slot in ("wgrad[0]", "dgrad[0]", "bgrad[0]")} <= named


# The stand-in, a case -> what must be said of it, and in which words.
TOLD: dict[str, tuple[Machine, str, str, str]] = {
    "weights that are kept in bf16 in silence are another case": (
        Machine("2.20.2", variables={"FAKE_TE_FAULT": "kept in bf16"}),
        f"te:api=module:recipe=Float8CurrentScaling:{KEPT}",
        "NOT_THE_CASE",
        "asked quantized_model_init=1, and quantized_model_init=0 ran",
    ),
    "packed ones as well": (
        Machine("2.20.2", variables={"FAKE_TE_FAULT": "kept in bf16"}),
        f"{NATIVE}:recipe=Float8CurrentScaling:{KEPT}",
        "NOT_THE_CASE",
        "asked quantized_model_init=1, and quantized_model_init=0 ran",
    ),
    "a byte of a weight that is changed is told": (
        Machine("2.17.1", variables={"FAKE_TE_FAULT": "weight changed"}),
        f"te:api=module:recipe=DelayedScaling:{KEPT}",
        "UNEXPECTED",
        "expected weight[0]",
    ),
    "other memory under a weight is told": (
        Machine("2.17.1", variables={"FAKE_TE_FAULT": "weight moved"}),
        f"te:api=module:recipe=DelayedScaling:{KEPT}",
        "UNEXPECTED",
        "expected weight[0] to stay in the memory that the candidate was given",
    ),
    "a module that keeps them apart in silence is refused as announced": (
        Machine("2.20.2"),
        f"{NATIVE}:recipe=DelayedScaling:{KEPT}",
        "REFUSED",
        "asked single_grouped_weight=1, and single_grouped_weight=0 ran, without a word from the candidate",
    ),
    "which up to 2.18 it does with Float8CurrentScaling as well": (
        Machine("2.17.1"),
        f"te:api=module:single_grouped_weight=1:recipe=Float8CurrentScaling:{KEPT}",
        "REFUSED",
        "a packed weight that is kept quantised with Float8CurrentScaling",
    ),
    "an op says no": (
        Machine("2.20.2"),
        f"te:api=op:single_grouped_weight=1:recipe=DelayedScaling:{KEPT}",
        "REFUSED",
        "RuntimeError in build, exact data: Delayed scaling is not supported with single_grouped_weight=True",
    ),
    "in other words up to 2.17": (
        Machine("2.17.1"),
        f"te:api=op:single_grouped_weight=1:recipe=Float8CurrentScaling:{KEPT}",
        "REFUSED",
        "Delayed scaling or float8 current scaling is not supported with single_grouped_weight=True",
    ),
}


@pytest.mark.parametrize(("machine", "case", "outcome", "words"), TOLD.values(), ids=TOLD)
def test_what_is_wrong_with_weights_that_are_kept_quantised(
    tmp_path: Path, machine: Machine, case: str, outcome: str, words: str
) -> None:
    told = finding(tmp_path, machine, case)
    assert told.outcome.value == outcome
    assert words in told.why


APART, OP = "module-keeps-weights-apart", "op-packs-no-such-weights"
# A case, the version of Transformer Engine -> the rows that close it, and what opens the last.
CLOSED: tuple[tuple[str, str, list[str], str], ...] = (
    ("te:api=module:recipe=DelayedScaling", "2.20.2", [], ""),
    ("te:api=module:path=native:recipe=Float8CurrentScaling", "2.20.2", [], ""),
    ("te:api=module:single_grouped_weight=1:recipe=DelayedScaling", "2.17.1", [APART], "single_grouped_weight=0"),
    (
        "te:api=module:single_grouped_weight=1:recipe=Float8CurrentScaling",
        "2.18.0",
        [APART],
        "single_grouped_weight=0, or Transformer Engine 2.19 or newer",
    ),
    ("te:api=module:single_grouped_weight=1:recipe=Float8BlockScaling", "2.17.1", [], ""),
    (f"{NATIVE}:recipe=Float8CurrentScaling", "2.20.2", [], ""),
    ("te:api=op:recipe=DelayedScaling", "2.20.2", [], ""),
    (
        "te:api=op:single_grouped_weight=1:recipe=Float8CurrentScaling",
        "2.17.1",
        [OP],
        "single_grouped_weight=0, or Transformer Engine 2.18 or newer",
    ),
    ("te:api=op:single_grouped_weight=1:recipe=Float8CurrentScaling", "2.18.0", [], ""),
    ("te:api=op:single_grouped_weight=1:recipe=DelayedScaling", "2.18.0", [OP], "single_grouped_weight=0"),
)


@pytest.mark.parametrize(("case", "version", "rows", "unlock"), CLOSED)
def test_the_table_says_which_are_not_packed(case: str, version: str, rows: list[str], unlock: str) -> None:
    found = closed(Case.parse(f"{case}:{KEPT}"), Machine(version).environment)
    assert [one.name for one in found] == rows
    assert "".join(one.unlock for one in found) == unlock


@pytest.mark.parametrize("packed", (0, 1))
def test_a_layout_that_the_table_says_is_not_had_and_is_has_a_note(packed: int) -> None:
    case = Case.parse(f"te:api=module:single_grouped_weight=1:recipe=DelayedScaling:{KEPT}")
    ran = ChannelSeen(fill="exact", phases=[PhaseSeen(microbatch=0, phase="forward", slots=[])])
    seen = Observation(case=str(case), ending="finished", channels=[ran], effective={"single_grouped_weight": packed})
    notes = ran_all_the_same(case, seen, Machine("2.17.1").environment)
    assert [APART in note for note in notes] == [True] * packed


def test_weights_that_a_recipe_quantises_in_each_step_are_packed_as_others() -> None:
    case = Case.parse(f"te:api=module:single_grouped_weight=1:recipe=DelayedScaling:{SHAPE}")
    assert closed(case, Machine("2.17.1").environment) == []


def test_a_fallback_of_the_layout_is_none_of_the_path() -> None:
    case = Case.parse(f"{NATIVE}:recipe=Float8BlockScaling:{KEPT}")
    assert "module-falls-back" in [one.name for one in closed(case, Machine("2.17.1").environment)]


EXCLUDED = {
    "te:api=module:quantized_model_init=1": "quantised-weights-need-a-recipe",
    "torch:api=loop:quantized_model_init=1:recipe=MXFP8": "torch-keeps-no-quantised-weights",
    "te:api=op_mlp:quantized_model_init=1:recipe=MXFP8": "chain-has-no-recipe",
}


@pytest.mark.parametrize("case", EXCLUDED)
def test_a_case_in_which_nothing_could_be_kept_quantised_is_excluded(case: str) -> None:
    found = matrix.excluded(Case.parse(case))
    assert found is not None
    assert found.constraint == EXCLUDED[case]


def test_the_contract_says_what_is_kept() -> None:
    case = "te:api=module:recipe=MXFP8:quantized_model_init=1:backward_override=high_precision"
    said = "\n".join(contract.in_words(Case.parse(case)))
    assert "quantized_model_init=1: w_i are kept quantised, once as they are loaded" in said
    assert "multiplies all as it was given, unquantised, and w as it is kept" in said
    assert "as it is kept" not in "\n".join(contract.in_words(Case.parse(case.replace(":quantized_model_init=1", ""))))


@pytest.mark.parametrize("kept", (0, 1))
def test_a_delayed_scale_of_weights_that_are_kept_is_the_first_one(kept: int) -> None:
    case = Case.parse(f"te:api=op:recipe=DelayedScaling:quantized_model_init={kept}:{SHAPE}")
    inputs = replace(draw(case, "normal", DEVICE), quantised_once=quantised.quantised_once(case))
    first, second = (quantised.operands(case, inputs, k, "fprop").weight for k in (0, 1))
    assert torch.equal(first, quantised.at_scale(inputs.weight, torch.ones(()), quantised.E4M3))
    assert torch.equal(first, second) == bool(kept)


def test_a_module_that_is_told_its_first_microbatch_keeps_the_scale_of_that() -> None:
    """As `prepare` has it, which the references of all providers come from; the data are the same."""
    cases = [
        Case.parse(f"te:api=module:recipe=DelayedScaling:is_first_microbatch={told}:{SHAPE}")
        for told in ("unset", "first")
    ]
    anew, kept = (prepare(case, "normal", DEVICE) for case in cases)
    assert torch.equal(anew.inputs.x[1], kept.inputs.x[1])
    assert torch.equal(anew.roles[0]["fprop"].value, kept.roles[0]["fprop"].value)
    weight = quantised.at_scale(kept.inputs.weight, torch.ones(()), quantised.E4M3)
    assert torch.equal(quantised.operands(cases[1], kept.inputs, 1, "fprop").weight, weight)
    assert not torch.equal(anew.roles[1]["fprop"].value, kept.roles[1]["fprop"].value)


def test_an_override_has_no_other_weights_than_those_that_are_kept() -> None:
    case = Case.parse(f"te:api=module:recipe=MXFP8:backward_override=high_precision:{KEPT}")
    inputs = draw(case, "normal", DEVICE)
    forward, dgrad, wgrad = (quantised.operands(case, inputs, 0, role) for role in ("fprop", "dgrad", "wgrad"))
    assert torch.equal(dgrad.weight, forward.weight)
    assert not torch.equal(forward.weight, inputs.weight.double())
    assert torch.equal(dgrad.grad_output, inputs.grad_output[0])
    assert torch.equal(wgrad.x, inputs.x[0])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in's interface in this process, and gone afterwards with what has imported it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_VERSION", "2.20.2")
    monkeypatch.setenv("NVTE_GROUPED_LINEAR_SINGLE_PARAM", "1")
    import transformer_engine.pytorch as te

    yield te
    for name in set(sys.modules) - before:
        if name.startswith(("transformer_engine", "gradcheck_cli.compute.providers.te_")):
            del sys.modules[name]


@pytest.mark.parametrize("packed", (False, True))
@pytest.mark.filterwarnings("ignore:GroupedLinear with single parameters")
def test_what_quantisation_left_of_random_data_must_stay_to_the_last_bit(stand_in: ModuleType, packed: bool) -> None:  # noqa: FBT001
    from transformer_engine.common.recipe import Float8CurrentScaling

    from gradcheck_cli.compute.providers.te_parameters import TEParameters
    from gradcheck_cli.compute.providers.te_recipe import Quantised

    with stand_in.quantized_model_init(enabled=True, recipe=Float8CurrentScaling()):
        op = stand_in.ops.GroupedLinear(2, 32, 16, bias=False, dtype=torch.bfloat16, single_grouped_weight=packed)
    layer = TEParameters(op, 2, Quantised(Case.parse("te:api=op:recipe=Float8CurrentScaling")))
    drawn = torch.randn(2, 16, 32).bfloat16()
    layer.load(drawn, None)
    held = named("weight", list(layer.weights))
    kept = loaded("weight", held, drawn)
    loans = Loans([kept], [], [], [], lambda: list(layer.weights))
    assert not torch.equal(kept.given, drawn.float())
    assert (kept.given - drawn.float()).abs().max() < 0.2
    assert loans.changed(loans.seen(), 0) == []
    weights: list[Any] = [*layer.weights]
    second = weights[0].split_into_quantized_tensors()[1] if packed else weights[1]
    second._scale_inv.mul_(1.0001)
    assert loans.changed(loans.seen(), 0) == ["weight[1]"]
