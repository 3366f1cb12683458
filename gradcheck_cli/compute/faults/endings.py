"""How does a layer not come back? The endings of the self-test, each as a call that does not return."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import torch

MUCH = 1 << 60  # bytes


def _raise(_: torch.device) -> None:
    raise RuntimeError("this layer raises in its forward, as it was asked to")


def _poison_the_context(device: torch.device) -> None:
    if device.type != "cuda":
        raise RuntimeError("poisoned_context: expected a CUDA device, which alone has a context to poison")
    torch.zeros(1, device=device)[torch.full((1,), MUCH, device=device)].sum()
    torch.cuda.synchronize(device)


# Names of `battery.ENDINGS`.
END: dict[str, Callable[[torch.device], object]] = {
    "segfault": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "hang": lambda _: time.sleep(1e6),
    "silent_exit": lambda _: os._exit(0),
    "out_of_memory": lambda device: torch.empty(MUCH, dtype=torch.uint8, device=device),
    "raises": _raise,
    "poisoned_context": _poison_the_context,
}
