"""What is a right layer indifferent to? Others that compute on its device, and memory that is reused at once."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import cycle

import torch

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.stress import SWITCH

NAME = "gradcheck-stress"
SIDE = 192  # rows and columns of what is multiplied
ROUND = 8  # products enqueued at once on a CUDA stream, then waited for
SIZES = (96, 40_000, 1_536, 6_000, 300, 200_000, 12_288, 3_072)  # bytes of the blocks that come and go
HELD = 13  # of these at once: no multiple of the sizes, so that what is freed fits what is asked for next badly
BYTE = 0x3C  # what is left in them: in bf16, fp16 and fp32 a number like many others

_ROUND = threading.Lock()


@contextmanager
def stressed(case: Case, device: torch.device) -> Iterator[None]:
    """Run a case beside a thread that computes, copies, allocates and frees, where the worker was asked for it.

    Not while CUDA graphs are captured: a call of another thread may end a capture (torch.cuda.graph,
    `capture_error_mode`).
    """
    if os.environ.get(SWITCH) != "1" or case.cuda_graph != "none":
        yield
        return
    done = threading.Event()
    beside = threading.Thread(
        target=_on_cuda if device.type == "cuda" else _on_cpu, args=(device, done), name=NAME, daemon=True
    )
    beside.start()
    try:
        yield
    finally:
        done.set()
        beside.join()


def quiet(device: torch.device) -> AbstractContextManager[object]:
    """Keep the thread still on CUDA, whose profiler names the kernels of all threads alike."""
    return _ROUND if device.type == "cuda" else nullcontext()


@torch.no_grad()
def _on_cpu(device: torch.device, done: threading.Event) -> None:
    factors, copied = _operands(device)
    blocks, sizes = deque[torch.Tensor](maxlen=HELD), cycle(SIZES)
    while not done.is_set():
        copied.copy_(factors @ factors)
        blocks.append(_block(next(sizes), device))


@torch.no_grad()
def _on_cuda(device: torch.device, done: threading.Event) -> None:
    """On a stream of its own; blocks from the pool of the layer's stream, and written in its order."""
    torch.cuda.set_device(device)
    aside, ready = torch.cuda.Stream(device), torch.cuda.Event()
    with torch.cuda.stream(aside):
        factors, copied = _operands(device)
    blocks, sizes = deque[torch.Tensor](maxlen=HELD), cycle(SIZES)
    # An error of the device is the layer's to be told, by whoever waits for the layer.
    with suppress(RuntimeError):
        while not done.is_set():
            with _ROUND:
                with torch.cuda.stream(aside):
                    for _ in range(ROUND):
                        copied.copy_(factors @ factors)
                    ready.record()
                blocks.append(_block(next(sizes), device))
                ready.synchronize()


def _operands(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn from no generator: those of torch are the candidate's."""
    factors = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
    return factors, torch.empty_like(factors)


def _block(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device).fill_(BYTE)
