"""What is on this machine? Package metadata and the CUDA driver, asked without importing torch."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib import metadata

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.unpacked import DISTRIBUTION, Unpacked


def version(distribution: str, te: Unpacked | None = None) -> str:
    """The installed version of a distribution, "" where it is not installed; an unpacked one stands before it."""
    if te and distribution == DISTRIBUTION:
        return te.version
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@cache
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


def device(asked: str) -> str:
    """The device to run on: the one asked for, else the first CUDA device, else the CPU.

    UsageError where it is not here. Whether torch can use it shows in the worker, which opens it.
    """
    if not asked:
        return "cuda:0" if cuda_devices() else "cpu"
    known = re.fullmatch(r"cpu|cuda(:(?P<index>[0-9]+))?", asked)
    if not known:
        raise UsageError(f"--device {asked}: expected cpu, cuda or cuda:N")
    if asked != "cpu" and int(known["index"] or 0) >= cuda_devices():
        raise UsageError(
            f"--device {asked}: expected a device that the CUDA driver offers, found {_counted(cuda_devices())}; "
            f"choose another, or run the embedded default with --provider torch --device cpu"
        )
    return asked


def closed(candidate: Candidate, te: Unpacked | None = None) -> str:
    """Why a candidate cannot run on this machine, and what to do; "" where it can. An unpacked one is installed."""
    if not version(candidate.distribution, te):
        return f"{candidate.distribution} is not installed: install it into this environment"
    if candidate.needs_cuda and not cuda_devices():
        return "it needs a CUDA device, and no CUDA driver answers here: run it on a machine with a GPU"
    return ""


_EMBEDDED = "The embedded default runs anywhere: gradcheck run --provider torch"


def require(
    candidates: tuple[Candidate, ...], device: str, te: Unpacked | None = None, otherwise: str = _EMBEDDED
) -> None:
    """UsageError where a candidate that was asked for cannot run on the device that was asked for.

    `otherwise` says what to do instead.
    """
    for candidate in candidates:
        if why := closed(candidate, te):
            raise UsageError(f"provider {candidate.name} cannot run: {why}.\n{otherwise}")
        require_cuda(candidate, device, otherwise)


def require_cuda(candidate: Candidate, device: str, otherwise: str = _EMBEDDED) -> None:
    """UsageError where a candidate needs a CUDA device, and was given another one."""
    if candidate.needs_cuda and not device.startswith("cuda"):
        why = f"it needs a CUDA device, and --device is {device}: choose --device cuda:0"
        raise UsageError(f"provider {candidate.name} cannot run: {why}.\n{otherwise}")


def _counted(devices: int) -> str:
    return f"{devices or 'no'} CUDA device{'' if devices == 1 else 's'}"
