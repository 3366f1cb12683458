"""Has a fault of a chain a script, built of the chain's own parts, and has a right chain none?"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from forked import forked
from te_scripts import written

from gradcheck_cli import plugins, reproducing
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce.execute import execute
from gradcheck_cli.reproduce.minimise import Budget
from gradcheck_cli.reproduce.scripting import TIMES, control
from gradcheck_cli.reproduce.wanted import FAULT, MOST_LINES, Unscriptable

STAND_IN = Path(__file__).parent / "fake_te"


class Shown(NamedTuple):
    """A case of a fault of `faulty_chains.py`, and the last line of its script."""

    knobs: str
    said: str


SIZES = "m_splits=2,0,3:microbatches=1:in_features=6:out_features=4"
# By the fault, which is a provider of its own, so that its chain is built as that of any plug-in.
SHOWN = {
    "fc1_lost": Shown("", f"{FAULT} wgrad is missing: weights [0, 1, 2]"),
    "fc1_lost fused": Shown("fuse_wgrad=1", f"{FAULT} wgrad is missing: experts [0, 2]"),
    "fc2_lost": Shown("single_grouped_weight=1", f"{FAULT} wgrad_fc2 is missing: weights_fc2 [0]"),
    "fc2_lost fused": Shown("fuse_wgrad=1:overwrite_main_grad=some", f"{FAULT} wgrad_fc2 is missing: experts [0, 2]"),
    "probs_detached": Shown("fuse_wgrad=1:single_grouped_weight=1", f"{FAULT} pgrad is missing"),
    "x_detached": Shown("grad_output=expanded", f"{FAULT} dgrad is missing"),
    "nonfinite": Shown("dtype=fp32", f"{FAULT} fprop is not finite"),
    "fc2_in_grad": Shown("fuse_wgrad=1", f"{FAULT} wgrad_fc2 is not where it must be: experts [0, 2]"),
    "fc2_untold": Shown("fuse_wgrad=1", f"{FAULT} grad_added_to_main_grad is not True: weights_fc2 [0, 1, 2]"),
    "fc2_written": Shown("", f"{FAULT} main_grad was written: weights_fc2 [0, 1, 2]"),
    "raises": Shown("", "RuntimeError: expected rows of 16 gates, found 8"),
}  # fmt: skip


BESIDE = ("fc2_lost", "fc2_lost fused", "probs_detached")  # looked at beside torch's own chain, three times as well


def provider(name: str) -> str:
    """That of a row."""
    return name.partition(" ")[0]


def case_of(name: str) -> Case:
    """A small case of a fault."""
    return Case.parse(":".join(part for part in (f"{provider(name)}:api=op_mlp", SHOWN[name].knobs, SIZES) if part))


@pytest.fixture(scope="module")
def faulty() -> Iterator[None]:
    """Each fault is a provider."""
    with pytest.MonkeyPatch.context() as patch:
        for name in map(provider, SHOWN):
            one = msgspec.structs.replace(
                plugins.BUILT_IN["torch"], name=name, apis={"op_mlp": f"faulty_chains:{name}"}
            )
            patch.setitem(plugins.ON_PURPOSE, name, one)
        yield


@pytest.fixture(scope="module")
def shown(faulty: None) -> dict[str, Scripted]:
    """The script of every fault, from one real worker, each run in a new process."""
    cases = {name: case_of(name) for name in SHOWN}
    beside = [cases[name] for name in BESIDE]
    with reproducing.bench(cases["fc1_lost"], "cpu", 30.0) as on, ThreadPoolExecutor(2) as pool:
        for case in cases.values():
            on.judged(case)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproducing, "execute", forked)
            patch.setattr(on, "passing", lambda case: [control(case)] if case in beside else [])
            done = pool.map(functools.partial(reproducing.script_of, on), cases.values())
            return dict(zip(SHOWN, done, strict=True))


@pytest.mark.parametrize("name", SHOWN)
def test_the_script_of_a_chains_fault_fails_three_times_of_three(shown: dict[str, Scripted], name: str) -> None:
    found = shown[name]
    assert found.why_not == ""
    assert (found.fails, found.of) == (TIMES, TIMES)
    assert found.output.splitlines()[-1] == SHOWN[name].said
    assert len(found.script.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", BESIDE)
def test_torchs_own_chain_is_built_of_torch_alone_and_passes(shown: dict[str, Scripted], name: str) -> None:
    found = shown[name]
    assert (found.passes, found.variant) == (TIMES, str(control(case_of(name))))
    assert not re.search("gradcheck_cli|transformer_engine", found.variant_script)


def test_a_chain_is_made_smaller(faulty: None) -> None:
    large = "fc2_lost:api=op_mlp:fuse_wgrad=1:single_grouped_weight=1:m_splits=empty_middle:microbatches=2"
    with reproducing.bench(case_of("fc2_lost"), "cpu", 30.0) as on:
        found = reproducing.smallest(on, Case.parse(large), Budget(40, 60.0), lambda _: None)
    assert (found.role, found.outcome) == ("wgrad_fc2", Outcome.MISSING)
    kept = "fuse_wgrad_accumulation=1:num_gemms=1:tokens_per_expert=1:in_features=1:out_features=1:microbatches=1"
    assert found.case == f"fc2_lost:api=op_mlp:{kept}"


OP = "te:api=op_mlp"
# A case of Transformer Engine, what fails, and a part of the lines.
TOLD = {
    f"{OP}:m_splits=4,4:microbatches=1:in_features=16:out_features=32:single_grouped_weight=1": (
        "2, 16, 2 * 32, bias=False, ",
        "layer = te_ops.Sequential(fc1, te_ops.ScaledSwiGLU(), fc2)\nweights = [fc1.weight]\nweights_fc2 = [fc2.",
        'sizes = torch.tensor([4, 4], device="cuda")\ny = layer(x, sizes, probs, sizes)',
    ),
    f"{OP}:m_splits_as=host:fuse_wgrad=1": (
        "accumulate_into_main_grad=True",
        "for p in weights + weights_fc2:  # as a data-parallel wrapper does",
        "    sizes = torch.tensor(splits)\n",
    ),
    f"{OP}:fuse_wgrad=1:overwrite_main_grad=some": (
        "for p in weights[1::2] + weights_fc2[1::2]: p.overwrite_main_grad = True",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_transformer_engines_chain_is_built_of_its_parts(case: str) -> None:
    diagnosis = "untouched" if "fuse" in case else "none"
    for role in ("wgrad", "wgrad_fc2", "pgrad", "dgrad"):
        said = diagnosis if role.startswith("wgrad") else "none"
        lines = written(case, Failure(role, Outcome.MISSING, said))
        assert len(lines) + 3 <= MOST_LINES
        text = "\n".join(lines)
        assert [part for part in TOLD[case] if part not in text] == []
        assert "no_grad" not in text


def test_the_lines_of_transformer_engines_chain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_VERSION", "2.17.1")
    failure = Failure("wgrad_fc2", Outcome.MISSING, "none")
    lines = written(f"{OP}:single_grouped_weight=1:m_splits=2,0,3", failure, "cpu")
    assert execute("\n".join(lines), 60.0).output.splitlines()[-3:] == [
        "probs.grad: arrived",
        "weight of fc2 0: .grad arrived",
        "ok",
    ]


def test_a_value_of_a_chain_has_no_script_and_a_single_layer_has_no_gradient_of_a_chain() -> None:
    for outcome in (Outcome.INACCURATE, Outcome.INEXACT):
        with pytest.raises(Unscriptable, match="gone through an activation"):
            written(OP, Failure("wgrad", outcome, "doubled"))
    with pytest.raises(Unscriptable, match="te:api=op has no such gradient"):
        written("te:api=op", Failure("wgrad_fc2", Outcome.MISSING, "none"))
