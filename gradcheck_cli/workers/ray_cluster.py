"""Which Ray cluster is it, and where on it may actors stand? On a GPU or a processor each, of the types asked for."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from gradcheck_cli.errors import UsageError

_TYPE = "accelerator_type:"  # the resource by which Ray knows a node's GPUs (ray.util.accelerators)
_PATIENCE = 10.0  # seconds that a head node may take to answer
_GPU, _CPU = "GPU", "CPU"
_DEVICES = {"": "", "all": "", "cuda": _GPU, "cpu": _CPU}


class Slot(NamedTuple):
    """What is asked of each slot, and of all of them."""

    device: str = ""
    workers: int = 0  # 0: one in each
    device_types: tuple[str, ...] = ()  # as Ray calls them: H100, B200; none: whatever there is
    address: str = ""


def imported() -> Any:
    """The module `ray`; UsageError where it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--executor ray: expected Ray to be installed, found {error}: pip install 'gradcheck-cli[ray]'"
        ) from None
    return ray


def connect(ray: Any, address: str) -> bool:
    """Join a cluster, or start one on this machine where none is; False where this process was in one.

    UsageError where none answers.
    """
    if ray.is_initialized():
        return False
    _require_heard(address or os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a test of a layer tells nobody that it ran
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do one day
    ended_by = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or None,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--address {address or '(none)'}: expected a Ray cluster that answers, found: {error}"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, ended_by)  # Ray's would end the run without a report
    return True


def _require_heard(address: str) -> None:
    """UsageError where nobody listens at HOST:PORT or ray://HOST:PORT: Ray itself waits there without a word."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--address {address}: expected a Ray cluster that answers, found: {error}") from None


def slots(nodes: Sequence[Mapping[str, Any]], asked: Slot) -> tuple[str, list[dict[str, Any]]]:
    """The device as torch calls it in each slot, and the options of an actor for each, the types in turn.

    `nodes` is what `ray.nodes()` says. UsageError where there are no such slots, or not so many.
    """
    if asked.device not in _DEVICES:
        raise UsageError(f"--device {asked.device}: with --executor ray expected cpu, cuda or all; Ray chooses which")
    alive = [one["Resources"] for one in nodes if one["Alive"]]
    fitting = {name: [one for one in alive if _TYPE + name in one] for name in asked.device_types} or {"": alive}
    for name in (name for name, held in fitting.items() if not held):
        there = sorted({key.removeprefix(_TYPE) for one in alive for key in one if key.startswith(_TYPE)})
        raise UsageError(
            f"--device-type {name}: expected a type of this Ray cluster, found {', '.join(there) or 'none'}"
        )
    kind = _DEVICES[asked.device] or (_GPU if any(_GPU in one for one in chain(*fitting.values())) else _CPU)
    each = [[_options(kind, name)] * int(sum(one.get(kind, 0) for one in held)) for name, held in fitting.items()]
    dealt = [one for turn in zip_longest(*each) for one in turn if one is not None]
    if len(dealt) < max(1, asked.workers):
        raise UsageError(
            f"--executor ray: expected {max(1, asked.workers)} {kind} in the cluster for as many workers, "
            f"found {len(dealt)}: ask for fewer with --workers, or for another --device"
        )
    return ("cuda:0" if kind == _GPU else "cpu"), dealt[: asked.workers or None]


def _options(kind: str, name: str) -> dict[str, Any]:
    """Those of an actor that has this GPU, or this processor, for itself, and is never started anew by Ray."""
    of_type = {"resources": {_TYPE + name: 0.001}} if name else {}
    return {"num_cpus": 1, "num_gpus": int(kind == _GPU), "max_restarts": 0, **of_type}
