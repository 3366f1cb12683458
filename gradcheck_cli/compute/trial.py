"""Whose exception is it? One raised while the candidate runs is the candidate's, and becomes its verdict."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradcheck_cli.records.observation import Raised
from gradcheck_cli.roots import without_roots


class CandidateRaised(Exception):
    """The candidate raised; what and where is in `seen`."""

    def __init__(self, seen: Raised) -> None:
        super().__init__(seen.message)
        self.seen = seen


@contextmanager
def on_trial(during: str, device: torch.device) -> Iterator[None]:
    """Run the candidate: whatever it raises, asynchronous CUDA errors included, leaves as CandidateRaised."""
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # a candidate may raise anything; no verdict but RAISED or REFUSED can follow
        raise CandidateRaised(
            Raised(
                type=type(error).__name__,
                message=without_roots(str(error).strip()),
                during=during,
                traceback=without_roots("".join(traceback.format_exception(error)))[-4000:],
                sticky=_sticky(device),
            )
        ) from error


def _sticky(device: torch.device) -> bool:
    """Whether the device no longer answers: a sticky CUDA error fails every later call of the process."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return True
    return False
