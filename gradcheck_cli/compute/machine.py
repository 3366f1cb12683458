"""Where are we? Versions as loaded, the device, and the variables that change what a library does."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.stress import SWITCH

# Variables that change numerics, paths or memory, and which container it is; values that hold a path are not recorded.
PREFIXES = (
    "NVTE_",
    "CUBLAS",
    "NVIDIA_TF32",
    "NVIDIA_PYTORCH_VERSION",
    "PYTORCH_CUDA_ALLOC",
    "TORCH_ALLOW_TF32",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    SWITCH,
)
PROBE_BYTES = 64 << 20
NO_CONTAINER = "none seen"
_MARKS = {"Docker": "/.dockerenv", "Podman": "/run/.containerenv", "Apptainer": "/.singularity.d"}


def open_device(name: str) -> torch.device:
    """The device, proved to answer; UsageError where there is none of that name, HarnessError where it is full."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"no CUDA device {name}: torch {torch.__version__} sees {torch.cuda.device_count()}; "
            f"choose another --device, or run the embedded default with --provider torch --device cpu"
        )
    try:
        probe = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        del probe
    except RuntimeError as error:
        raise HarnessError(f"{name} cannot be used: {no_memory(device, error)}") from error
    return device


def no_memory(device: torch.device, error: Exception) -> str:
    """A device error in words, with what is free where the driver still says so."""
    first = str(error).strip().partition("\n")[0]
    if device.type != "cuda":
        return f"{first} (choose a smaller case)"
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return first
    return (
        f"{first} ({free >> 20} MiB of {total >> 20} MiB are free; end what holds the rest, or choose another --device)"
    )


def environment(device: torch.device, variables: dict[str, str]) -> Environment:
    """Everything a report must say of this process; `variables` as they were before the candidate was imported."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    capability = None
    name = _processor()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
        versions |= {"cuda": torch.version.cuda or "", "driver": _driver(), "cublaslt": cublaslt(), "cudnn": cudnn()}
    if "transformer_engine" in sys.modules:
        versions["transformer_engine"] = str(getattr(sys.modules["transformer_engine"], "__version__", ""))
        versions["transformer_engine"] = versions["transformer_engine"] or _installed("transformer-engine")
    return Environment(
        versions={name: version for name, version in versions.items() if version},
        device=str(device),
        device_name=name,
        compute_capability=capability,
        variables=variables,
        system=system(),
        container=container(),
        installed={
            name: how for name in ("torch", "transformer_engine") if name in versions and (how := installer(name))
        },
    )


def recorded_variables() -> dict[str, str]:
    """The variables of this process that a report names."""
    named = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)}
    return {name: "(a path)" if os.sep in value else value for name, value in named.items()}


def system() -> str:
    """`Ubuntu 24.04.2 LTS`; the name of the kernel where no file says it."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "") or platform.system()
    except OSError:
        return platform.system()


def container() -> str:
    """The kind of container this process is in, by the mark that each leaves; "none seen" where there is none."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    return next((kind for kind, mark in _MARKS.items() if Path(mark).exists()), NO_CONTAINER)


def installer(distribution: str) -> str:
    """`pip, from a package index`, as the installer wrote it down (PEP 376, PEP 610); no address and no folder."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return ""
    written, direct = found.read_text("INSTALLER") or "", found.read_text("direct_url.json")
    tool = written.strip() if re.fullmatch(r"[a-z][\w-]{0,20}\s*", written) else "an unknown installer"
    return f"{tool}, {_origin(direct) if direct else 'from a package index'}"


def _origin(direct: str) -> str:
    """Where a direct reference leads to, without its address, which may be private."""
    try:
        said = json.loads(direct)
    except ValueError:
        return "from a direct reference"
    if not isinstance(said, dict) or "dir_info" in said:
        return "from a folder of sources"
    commit = str((said.get("vcs_info") or {}).get("commit_id", ""))
    if re.fullmatch(r"[0-9a-f]{7,64}", commit):
        return f"from sources at commit {commit[:12]}"
    return "from a file"


def cublaslt() -> str:
    """The cuBLASLt that is loaded, as it calls itself: 13.1.0; "" where none is."""
    return _library(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}", "cublasLtGetVersion")


def cudnn() -> str:
    """The cuDNN that is loaded: 9.14.0; asked of the library, since torch refuses to name one it was not built for."""
    return _library("libcudnn.so.9", "cudnnGetVersion")


def _library(soname: str, function: str) -> str:
    """The version of a shared library as it says itself, "" where it is not there."""
    try:
        ask = getattr(ctypes.CDLL(soname), function)
    except (OSError, AttributeError):
        return ""
    ask.restype = ctypes.c_size_t
    number = int(ask())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _driver() -> str:
    """The driver's version, asked of nvidia-smi; "" where it is not there."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.split("\n")[0].strip()


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")
    except OSError:
        return platform.processor() or "cpu"


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
