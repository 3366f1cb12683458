"""Where do the workers of a run stand? Each on a device, and with a share of the processor."""

from __future__ import annotations

import os

from gradcheck_cli import installed
from gradcheck_cli.records.job import Variables
from gradcheck_cli.workers.process import Place

ALL = "all"


def places(device: str, workers: int) -> list[Place]:
    """A place for each worker: `workers` of them, 0 for one on each device, dealt out to the devices in turn.

    UsageError where the device is not here. Several workers share the processor's cores, unless the user says how many
    threads each shall have, or the candidate asks for some number.
    """
    devices = _every() if device == ALL else [(installed.device(device), {})]
    number = workers or len(devices)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = {"OMP_NUM_THREADS": str(max(1, cores // number))} if number > 1 else {}
    dealt = [devices[i % len(devices)] for i in range(number)]
    return [Place(name, Variables(share, visible)) for name, visible in dealt]


def _every() -> list[tuple[str, dict[str, str]]]:
    """Every CUDA device, each the only one that its worker sees; the CPU where there is none.

    Each is then `cuda:0` in its worker, and what a case says is the same on all of them. A library that uses the
    current device, whatever it was given, uses the right one.
    """
    count = installed.cuda_devices()
    asked = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in asked.split(",")] if asked else [str(i) for i in range(count)]
    return [("cuda:0", {"CUDA_VISIBLE_DEVICES": name}) for name in names[:count]] or [("cpu", {})]
