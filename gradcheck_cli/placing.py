"""Where do the workers of a run stand? Each on a device, and with a share of the processor."""

from __future__ import annotations

import os
from pathlib import Path

from gradcheck_cli import installed
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.job import Variables
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import Executor, LocalExecutor
from gradcheck_cli.workers.process import Place

ALL = "all"
LOCAL, RAY = "local", "ray"


class Placing(Record, frozen=True, kw_only=True):
    """Where the workers shall stand."""

    device: str = ""
    workers: int = 0  # 0: one for each device
    executor: str = LOCAL
    address: str = ""  # of a Ray cluster
    device_type: str = ""  # of its GPUs, as Ray calls them: "H100,B200"


def require(asked: Placing, candidates: tuple[Candidate, ...], te: Unpacked | None) -> None:
    """UsageError for options that do not go together, and where a candidate cannot run there.

    What is installed on the nodes of a Ray cluster only a worker on them can tell.
    """
    if asked.executor not in {LOCAL, RAY}:
        raise UsageError(f"--executor {asked.executor}: expected {LOCAL} or {RAY}")
    if asked.executor == LOCAL:
        if asked.address or asked.device_type:
            raise UsageError("--address and --device-type are of a Ray cluster: add --executor ray")
        installed.require(candidates, places(asked.device, asked.workers)[0].device, te)
    elif asked.device == "cpu":
        for candidate in candidates:
            installed.require_cuda(candidate, asked.device)


def executor(asked: Placing, te: Unpacked | None, log_dir: Path, timeout: float) -> Executor:
    """What runs the cases of a run there, those that cost their worker twice."""
    if asked.executor == LOCAL:
        where = places(asked.device, asked.workers)
        return LocalExecutor(device=where, log_dir=log_dir, timeout=timeout, te=te, retry=True)
    from gradcheck_cli.workers.ray_cluster import Slot  # noqa: PLC0415
    from gradcheck_cli.workers.ray_executor import RayExecutor  # noqa: PLC0415 - few runs need it

    types = tuple(name.strip() for name in asked.device_type.split(",") if name.strip())
    slot = Slot(asked.device, asked.workers, types, asked.address)
    return RayExecutor(slot=slot, timeout=timeout, te=te, retry=True)


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
