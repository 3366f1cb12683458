"""Is memory that nobody should read poisoned, and is a layer that reads it caught?"""

from __future__ import annotations

import functools
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from commands import variables
from faulty_layers import LOOKED_AT
from in_process import CPU, engine, seen_by

from gradcheck_cli import pipeline
from gradcheck_cli.compute import poison as module
from gradcheck_cli.compute.poison import POISON, filled, poison, sizes, tile
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, POISON_BYTES, Fill, Observation
from gradcheck_cli.records.verdict import Outcome

DEVICE = torch.device("cpu")
# The default case but for expert 2, which has no tokens in any microbatch.
CASE = "torch:api=loop:bias=1:m_splits=32,40,0,56,0"
LAYOUTS = ("", ":single_grouped_weight=1", ":fuse_wgrad_accumulation=1")
PATTERNS = (*POISON_BYTES, "stale")
FAULTS = (
    "unwritten_wgrad_of_an_empty_expert",
    "last_row_of_fprop_unwritten",
    "last_row_of_dgrad_unwritten",
    "wgrad_added_to_what_lay_there",
)


@functools.cache
def poisoned(pattern: str, fault: str, tail: str = "") -> Observation:
    """A layer, run with one pattern under every fill."""
    with pytest.MonkeyPatch.context() as patch:
        for fill in FILLS:
            patch.setitem(POISON, fill, pattern)
        job = msgspec.structs.replace(pipeline.job(Case.parse(CASE + tail)), target=f"faulty_layers:{fault}")
        return engine(job.target).run(job)


def outcome(observation: Observation, fill: Fill) -> Outcome:
    return conclude(Case.parse(observation.case), seen_by(observation, fill), CPU).outcome


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_layer_that_reads_unwritten_memory_is_caught_under_every_poison(fault: str, pattern: str, fill: Fill) -> None:
    found = outcome(poisoned(pattern, fault), fill)
    assert found in (Outcome.NONFINITE, Outcome.INEXACT, Outcome.INACCURATE)
    assert pattern != "0xFF" or found is Outcome.NONFINITE


@pytest.mark.parametrize("tail", LAYOUTS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_right_layer_passes_under_every_poison(pattern: str, tail: str) -> None:
    observation = poisoned(pattern, "none", tail)
    assert conclude(Case.parse(observation.case), observation, CPU).findings == []


@pytest.mark.parametrize("fault", ("last_row_of_fprop_unwritten", "last_row_of_dgrad_unwritten"))
def test_an_unwritten_row_is_called_uninitialised_with_the_poison_that_it_holds(fault: str) -> None:
    observation = poisoned("0x71", fault)
    findings = conclude(Case.parse(observation.case), observation, CPU).findings
    assert "uninitialised (0x71)" in {finding.diagnosis for finding in findings}


@pytest.mark.parametrize("pattern", POISON_BYTES)
def test_a_channel_says_which_poison_was_found_in_memory(pattern: str) -> None:
    assert {channel.poison for channel in poisoned(pattern, "none").channels} == {pattern}


def test_whatever_is_allocated_while_a_layer_is_built_or_runs_holds_the_pattern() -> None:
    LOOKED_AT.clear()
    job = msgspec.structs.replace(pipeline.job(Case.parse(CASE)), target="faulty_layers:Reader")
    engine(job.target).run(job)
    stages = ["build", "forward", "backward", "forward", "backward"]
    assert [stage for stage, _ in LOOKED_AT] == stages * len(FILLS)
    for number, fill in enumerate(FILLS):
        own = LOOKED_AT[number * len(stages) :][: len(stages)]
        if POISON[fill] in POISON_BYTES:
            assert [held for _, held in own] == [{POISON_BYTES[POISON[fill]]}] * len(stages)


def test_every_fill_has_a_poison_of_its_own() -> None:
    assert sorted(POISON.values()) == sorted(PATTERNS)


def test_a_channel_claims_no_poison_that_was_not_found_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POISONED", 1.1)
    job = pipeline.job(Case.parse(CASE))
    assert {channel.poison for channel in engine(job.target).run(job).channels} == {""}


def test_a_channel_that_was_not_run_claims_no_poison() -> None:
    job = pipeline.job(
        Case.parse("torch:api=loop:m_splits=300,2:grad_output=expanded:bias=1:in_features=8:out_features=8")
    )
    (channel,) = [one for one in engine(job.target).run(job).channels if one.fill == "exact"]
    assert (bool(channel.inapplicable), channel.poison) == (True, "")


@pytest.mark.parametrize("pattern", POISON_BYTES)
def test_what_is_allocated_next_holds_the_pattern_whatever_its_size(pattern: str) -> None:
    case = Case.parse(CASE)
    held = poison(pattern, case, DEVICE)
    with filled(pattern, DEVICE):
        blocks = [torch.empty(size // 8, dtype=torch.int64) for size in sizes(case)]
    words = tile(pattern, case.dtype, DEVICE)
    counted = [module._held(block, words) for block in blocks]
    assert held
    assert sum(count for count, _ in counted) >= module.POISONED * sum(seen for _, seen in counted)


STALE = f"""
import torch
from gradcheck_cli.compute.poison import poison
from gradcheck_cli.records.case import Case
print(poison("stale", Case.parse({CASE!r}), torch.device("cpu")))
"""


def test_what_is_allocated_next_in_a_fresh_process_holds_a_stale_result() -> None:
    # In one with holes of every size, as this one, the allocator may have another block at hand; then none is claimed.
    said = subprocess.run([sys.executable, "-c", STALE], env=variables(), capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_a_byte_is_what_it_is_said_to_be_in_every_dtype(dtype: str) -> None:
    own = DTYPES[dtype]
    assert tile("0xFF", dtype, DEVICE).view(own).isnan().all()
    assert tile("0x71", dtype, DEVICE).view(own).min() > 10_000
    assert tile("0x71", dtype, DEVICE).view(own).isfinite().all()


@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_a_stale_result_is_finite_and_of_the_size_of_a_result(dtype: str) -> None:
    values = tile("stale", dtype, DEVICE).view(DTYPES[dtype])
    assert 0 < values.abs().min() < values.abs().max() < 10


def test_memory_is_filled_only_for_as_long_as_the_layer_runs() -> None:
    def taken() -> list[bool]:
        for size in range(1 << 16, 1 << 17, 1 << 13):
            torch.zeros(size, dtype=torch.uint8)  # given back at once, as zeros
        blocks = [torch.empty(size, dtype=torch.uint8) for size in range(1 << 16, 1 << 17, 1 << 13)]
        return [bool((block == 0x71).all()) for block in blocks]

    during: list[bool] = []

    def run() -> None:
        during.extend(taken())
        raise KeyError

    with pytest.raises(KeyError), filled("0x71", DEVICE):
        run()
    assert (all(during), all(taken())) == (True, False)


def test_the_sizes_are_those_of_all_results_in_both_widths() -> None:
    case = Case.parse("torch:api=loop:m_splits=5,2:in_features=8:out_features=16:bias=1:microbatches=1")
    elements = (7 * 16, 7 * 8, 16 * 8, 2 * 16 * 8, 16, 2 * 16)
    assert set(sizes(case)) == {count * width for count in elements for width in (2, 4)}


def test_without_memory_to_spare_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> bool:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(module, "_laid", none)
    assert poison("0xFF", Case.parse(CASE), DEVICE) is False


def test_another_failure_of_the_harness_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> bool:
        raise RuntimeError("a mistake of our own")

    monkeypatch.setattr(module, "_laid", none)
    with pytest.raises(RuntimeError, match="a mistake of our own"):
        poison("0xFF", Case.parse(CASE), DEVICE)


def test_only_free_blocks_of_this_device_and_stream_are_swept_the_smallest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def segment(device: int, stream: int, *blocks: tuple[int, str], pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        described = [{"size": size, "state": state} for size, state in blocks]
        return {"device": device, "stream": stream, "segment_pool_id": pool, "blocks": described}

    snapshot = [
        segment(1, 7, (4096, "inactive"), (512, "active_allocated"), (1024, "inactive")),
        segment(1, 7, (module.SWEPT, "inactive")),
        segment(0, 7, (2048, "inactive")),
        segment(1, 8, (2560, "inactive")),
        segment(1, 7, (3072, "inactive"), pool=(0, 1)),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
    assert module._cached(1) == [1024, 4096]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_cuda_allocates_next_holds_the_pattern(pattern: str) -> None:
    case, device = Case.parse(CASE), torch.device("cuda")
    assert poison(pattern, case, device)
    words = tile(pattern, case.dtype, device)
    counted = [module._held(module._taken(size, device), words) for size in sizes(case)]
    assert sum(count for count, _ in counted) >= module.POISONED * sum(seen for _, seen in counted)
