"""What is on this machine? Package metadata and the CUDA driver, asked without importing torch."""

from __future__ import annotations

import ctypes
from importlib import metadata

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.candidate import Candidate


def version(distribution: str) -> str:
    """The installed version of a distribution, "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def cuda_devices() -> int:
    """How many devices the CUDA driver offers to this process, 0 where no driver answers.

    `cuInit` and `cuDeviceGetCount` of the CUDA driver API: no context is made, CUDA_VISIBLE_DEVICES is honoured.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def closed(candidate: Candidate, devices: int) -> str:
    """Why a candidate cannot run on this machine, and what to do; "" where it can."""
    if not version(candidate.distribution):
        return f"{candidate.distribution} is not installed: install it into this environment"
    if candidate.needs_cuda and not devices:
        return "it needs a CUDA device, and no CUDA driver answers here: run it on a machine with a GPU"
    return ""


def require(candidates: tuple[Candidate, ...], device: str) -> None:
    """UsageError where a candidate that was asked for cannot run on the device that was asked for."""
    devices = cuda_devices()
    for candidate in candidates:
        why = closed(candidate, devices)
        if not why and candidate.needs_cuda and not device.startswith("cuda"):
            why = f"it needs a CUDA device, and --device is {device}: choose --device cuda:0"
        if why:
            raise UsageError(
                f"provider {candidate.name} cannot run: {why}.\n"
                f"The embedded default runs anywhere: gradcheck run --provider torch"
            )
