"""Do verdicts stay what they are while others compute, copy and allocate on the device?"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from commands import child
from in_process import engine

from gradcheck_cli import pipeline
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.compute.stress import NAME, _block
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.stress import SWITCH, VARIABLES

SHAPE = "m_splits=5,0,9,7:in_features=16:out_features=24"


def report(folder: Path, *options: str) -> dict[str, Any]:
    """A run of smoke with every mutant, and of layers that are wrong, into a folder."""
    done = child(
        *("run", "--provider", "torch", "--matrix", "smoke", "--mutants", "all"),
        *("--device", "cpu", "--output", str(folder), "--quiet", *options),
    )
    assert (done.code, done.err) == (0, "")
    read: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    return read


def test_no_verdict_moves_under_stress_and_the_report_says_that_there_was_some(tmp_path: Path) -> None:
    calm, stressed = report(tmp_path / "calm"), report(tmp_path / "stressed", "--stress")
    told = [[{**one, "seconds": 0} for one in run["verdicts"]] for run in (calm, stressed)]
    assert told[0] == told[1]
    assert len(told[0]) == 8
    variables = [run["environment"]["variables"] for run in (calm, stressed)]
    assert [one.get(SWITCH) for one in variables] == [None, "1"]
    assert "--stress" in stressed["run"]["command"]


def test_a_fault_is_seen_under_stress_as_well(tmp_path: Path) -> None:
    faults = [part for api in ("wgrad_stale", "bgrad_one_ulp") for part in ("--case", f"faults:api={api}:bias=1")]
    done = child("run", *faults, "--stress", "--output", str(tmp_path / "run"), "--quiet", "--device", "cpu")
    assert done.code == 1
    verdicts = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))["verdicts"]
    assert [one["outcome"] for one in verdicts] == ["INEXACT", "INEXACT"]


class LooksAround(LoopLayer):
    """Raises where no other thread is at work beside it, or where one is that nobody has asked for."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        asked = os.environ.get(SWITCH) == "1"
        assert asked == any(thread.name == NAME for thread in threading.enumerate())
        return super().forward(x, m_splits)


@pytest.mark.parametrize("switch", ("1", "0"))
def test_the_others_are_there_while_a_case_runs_and_gone_after_it(
    switch: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    case, target = Case.parse(f"torch:api=loop:{SHAPE}"), "test_stress:LooksAround"
    seen = engine(target).run(msgspec.structs.replace(pipeline.job(case), target=target))
    assert seen.raised is None
    assert NAME not in {thread.name for thread in threading.enumerate()}


def test_what_is_given_back_was_written_to() -> None:
    assert _block(3, torch.device("cpu")).tolist() == [0x3C] * 3


def test_a_stressed_worker_is_none_that_a_calm_case_gets() -> None:
    case = Case.parse("torch:api=loop")
    assert pipeline.job(case).variables != pipeline.job(case, stress=True).variables
    assert pipeline.job(case, stress=True).switches == VARIABLES
