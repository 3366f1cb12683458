"""How does a layer not come back? The endings of the self-test, each as a call that does not return."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

import torch

from gradcheck_cli.compute.faults.gates import gate
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.endings import ENDINGS

MUCH = 1 << 60  # bytes
_MINUTES = 1 << 40  # cycles of a GPU; ten minutes at 1.8 GHz, so that none spins for ever where nothing ends it
_BLOCK = 1 << 30  # bytes
_KEPT: list[torch.Tensor] = []


def _require_cuda(name: str, device: torch.device, what: str) -> None:
    if device.type != "cuda":
        raise RuntimeError(f"{name}: expected a CUDA device, which alone has {what}")


def _raise(_: torch.device) -> None:
    raise RuntimeError("this layer raises in its forward, as it was asked to")


def _raise_in_wgrad(_: torch.device) -> None:
    raise RuntimeError("this layer raises where its weights' gradients are computed, as it was asked to")


def _poison_the_context(device: torch.device) -> None:
    _require_cuda("poisoned_context", device, "a context to poison")
    torch.zeros(1, device=device)[torch.full((1,), MUCH, device=device)].sum()
    torch.cuda.synchronize(device)


def _hang_in_a_kernel(device: torch.device) -> None:
    _require_cuda("hang_in_kernel", device, "kernels that spin")
    with torch.cuda.device(device):
        torch.cuda._sleep(_MINUTES)  # noqa: SLF001 - the kernel that spins, which torch has for its own tests
    torch.cuda.synchronize(device)


def _hoard(device: torch.device) -> None:
    _require_cuda("hoards_memory", device, "memory of its own to fill")
    while True:
        _KEPT.append(torch.empty(_BLOCK, dtype=torch.uint8, device=device))


def _garble(_: torch.device) -> None:
    if "--result-fd" not in sys.argv:
        raise RuntimeError("garbled: expected a worker, which alone has somebody to answer to")
    os.write(int(sys.argv[sys.argv.index("--result-fd") + 1]), b"loading kernels ...\n")


def _leave_orphans(_: torch.device) -> None:
    for begin in (os.getpid, os.setsid):
        if os.fork() == 0:
            begin()
            time.sleep(1e6)
    os.abort()


def _flood(_: torch.device) -> None:
    for _again in range(64):
        os.write(2, b"the same line, over and over: \n" * (1 << 15))
    os.abort()


# Names of `battery.ENDINGS`.
END: dict[str, Callable[[torch.device], object]] = {
    "segfault": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda _: time.sleep(1e6),
    "hang_in_c": lambda _: ctypes.PyDLL(None).sleep(1_000_000),
    "silent_exit": lambda _: os._exit(0),
    "garbled": _garble,
    "orphans": _leave_orphans,
    "flood": _flood,
    "out_of_memory": lambda device: torch.empty(MUCH, dtype=torch.uint8, device=device),
    "raises": _raise,
    "raises_in_wgrad": _raise_in_wgrad,
    "poisoned_context": _poison_the_context,
    "hang_in_kernel": _hang_in_a_kernel,
    "hoards_memory": _hoard,
}


class EndingLayer(LoopLayer):
    """The loop candidate that does not come back from its first forward, or from the wgrad after it."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.end, self.device = END[case.api], device

    def used(self) -> list[torch.Tensor]:
        """The weights; a gradient of one that ends in its wgrad does not come to be."""
        return (
            [gate(one, self._ended) for one in super().used()] if ENDINGS[self._case.api].in_wgrad else super().used()
        )

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """Ends, one way or another."""
        if not ENDINGS[self._case.api].in_wgrad:
            self.end(self.device)
        return super().forward(x, m_splits)

    def _ended(self, wgrad: torch.Tensor) -> torch.Tensor:
        self.end(self.device)
        return wgrad
