"""Does each worker get a device and a share of the processor, and does that change no verdict?"""

from __future__ import annotations

import os

import pytest

from gradcheck_cli import installed, placing
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.job import Variables
from gradcheck_cli.workers.process import Place


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Three GPUs and eight cores."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(installed, "cuda_devices", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return monkeypatch


def a_gpu(name: str, threads: str = "2") -> Place:
    return Place("cuda:0", Variables({"OMP_NUM_THREADS": threads}, {"CUDA_VISIBLE_DEVICES": name}))


@pytest.mark.usefixtures("machine")
def test_one_worker_stands_where_it_was_asked_to_and_has_the_whole_processor() -> None:
    assert placing.places("", 0) == [Place("cuda:0")]
    assert placing.places("cpu", 1) == [Place("cpu")]


@pytest.mark.usefixtures("machine")
def test_all_is_a_worker_on_each_gpu_which_is_the_only_one_that_it_sees() -> None:
    assert placing.places("all", 0) == [a_gpu("0"), a_gpu("1"), a_gpu("2")]


@pytest.mark.usefixtures("machine")
def test_more_workers_than_gpus_share_them() -> None:
    assert placing.places("all", 4) == [a_gpu("0"), a_gpu("1"), a_gpu("2"), a_gpu("0")]


def test_of_gpus_that_the_user_has_chosen_each_keeps_its_name(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1f,2")
    assert [place.variables.always["CUDA_VISIBLE_DEVICES"] for place in placing.places("all", 0)] == [
        "5",
        "GPU-1f",
        "2",
    ]


def test_all_is_the_processor_where_there_is_no_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(installed, "cuda_devices", lambda: 0)
    assert placing.places("all", 0) == [Place("cpu")]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("workers", "threads"), ((2, "4"), (3, "2"), (8, "1"), (20, "1")))
def test_workers_on_the_processor_divide_its_cores(workers: int, threads: str) -> None:
    assert placing.places("cpu", workers) == [Place("cpu", Variables({"OMP_NUM_THREADS": threads}))] * workers


@pytest.mark.usefixtures("machine")
def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(UsageError, match="cuda:3"):
        placing.places("cuda:3", 2)
