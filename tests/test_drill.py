"""Does a run keep its word when everything goes wrong at once? 240 cases, 40 of them faults, and three kills."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from test_resume import going, judged, lines, report, resumed

from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.workers.strays import MARK, of_folder

SEED = 3234
# How often each ending is mixed in; those that cost no worker make it up to forty.
FAULTS = {
    "segfault": 3,
    "abort": 3,
    "killed": 3,
    "silent_exit": 3,
    "garbled": 3,
    "orphans": 3,
    "flood": 2,
    "hang": 2,
    "hang_in_c": 2,
    "out_of_memory": 6,
    "raises": 5,
    "poisoned_context": 5,
}
COSTLY = sum(FAULTS[name] for name in FAULTS if name not in ("out_of_memory", "raises", "poisoned_context"))
KILLS = 3
HANGS_FOR = "6"  # seconds; a case takes a tenth of one

TORCH = """
[[block]]
provider = ["torch"]
api = ["loop"]
dtype = ["{dtype}"]
bias = [{bias}]
fuse_wgrad_accumulation = [{fuse}]
in_features = [16]
out_features = [24]
num_gemms = [2]
m_splits = [{splits}]
"""
FAULT = """
[[block]]
provider = ["faults"]
api = ["{api}"]
in_features = [16]
out_features = [24]
num_gemms = [2]
m_splits = ["{splits}"]
"""


def matrix() -> str:
    """Five cases of torch, then a fault, forty times over; which fault is drawn."""
    drawn = [api for api, often in FAULTS.items() for _ in range(often)]
    random.Random(SEED).shuffle(drawn)  # noqa: S311 - it is to be the same each time
    blocks = []
    for i, api in enumerate(drawn):
        splits = ", ".join(f'"{1 + (5 * i + j) % 16},{(5 * i + j) // 16}"' for j in range(5))
        dtype = ("bf16", "fp16", "fp32")[i % 3]
        blocks += [TORCH.format(dtype=dtype, bias=i % 2, fuse=i // 2 % 2, splits=splits)]
        blocks += [FAULT.format(api=api, splits=f"3,{i + 1}")]
    return "".join(blocks)


class Drilled(NamedTuple):
    """What three kills and a last run left."""

    code: int
    folder: Path
    killed_at: list[int]
    resumed: list[str]  # what each run that went on said


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> Drilled:
    where = tmp_path_factory.mktemp("drill")
    (where / "drill.toml").write_text(matrix(), encoding="utf-8")
    asked = ["--matrix", str(where / "drill.toml"), "--provider", "torch", "--provider", "faults", "--quiet"]
    asked += ["--workers", "3", "--timeout", HANGS_FOR, "--mutants", "none"]
    kills = sorted(random.Random(SEED).sample(range(20, 220), KILLS))  # noqa: S311
    said = []
    for number, verdicts in enumerate(kills):
        run = going(where / "run", *(["--resume"] if number else asked), *(["--workers", "3"] if number else []))
        run.until(verdicts)
        os.kill(run.process.pid, signal.SIGKILL)
        said.append(run.ended().err)
    done = resumed(where / "run", "--workers", "3", "--quiet")
    return Drilled(done.code, where / "run", kills, [*said[1:], done.err])


def test_there_are_240_verdicts_none_twice_and_none_lost(drilled: Drilled) -> None:
    (opened,) = lines(drilled.folder, "run")
    assert len(opened["cases"]) == len(set(opened["cases"])) == 240
    assert sum("faults:" in case for case in opened["cases"]) == sum(FAULTS.values()) == 40
    assert Counter(judged(drilled.folder)) == dict.fromkeys(opened["cases"], 1)
    assert [verdict["case"] for verdict in report(drilled.folder)["verdicts"]] == opened["cases"]
    assert drilled.code == 1  # findings, and nothing else


def test_each_verdict_is_the_right_one(drilled: Drilled) -> None:
    verdicts = report(drilled.folder)["verdicts"]
    expected = {
        one["case"]: "PASSED" if one["axes"]["provider"] == "torch" else ENDINGS[one["axes"]["api"]].deserves.value
        for one in verdicts
    }
    assert {one["case"]: one["outcome"] for one in verdicts} == expected


def test_each_case_that_cost_its_worker_was_tried_twice_and_reproduced(drilled: Drilled) -> None:
    verdicts = report(drilled.folder)["verdicts"]
    assert {one["case"] for one in verdicts if one["retried"]} == {
        one["case"] for one in verdicts if one["outcome"] in ("CRASHED", "TIMED_OUT")
    }
    assert [one["reproduced"] for one in verdicts if one["retried"]] == [True] * COSTLY


def test_each_run_that_went_on_said_how_much_was_left_and_what_was_in_flight(drilled: Drilled) -> None:
    told = lines(drilled.folder, "resumed")
    assert [one["judged"] >= at for one, at in zip(told, drilled.killed_at, strict=True)] == [True] * KILLS
    for one, said in zip(told, drilled.resumed, strict=True):
        assert f"{240 - one['judged']} of 240 cases" in said
        assert all(case in said for case in one["in_flight"])


def test_nothing_is_left_running(drilled: Drilled) -> None:
    mark, until = f"{MARK}={of_folder(drilled.folder)}".encode(), time.monotonic() + 30
    while left := [pid for pid in Path("/proc").glob("[0-9]*") if mark in environment_of(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
