"""Which kernels did the candidate launch? Asked of torch's profiler while it runs, where nothing else tells as well."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch.autograd.profiler import profile

from gradcheck_cli.compute.stress import quiet
from gradcheck_cli.compute.trial import words
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.kernels import CUTLASS_SWITCH
from gradcheck_cli.records.observation import Phase

LONGEST = 200  # characters of one name
MOST = 200  # names of one case
# What chooses a family of kernels; with the same values of these, another shape or seed launches the same ones.
CHOOSING = (
    "provider",
    "api",
    "path",
    "single_grouped_weight",
    "fuse_wgrad_accumulation",
    "main_grad_dtype",
    "overwrite_main_grad",
    "delay_wgrad_compute",
    "frozen_weights",
    "frozen_input",
    "dtype",
    "recipe",
    "backward_override",
    "quantized_model_init",
    "bias",
    "single_grouped_bias",
    "save_original_input",
    "compile",
    "deterministic",
)
# Operators on the host that multiply, and those that are not torch's own; all others say nothing of a path.
OPERATOR = re.compile(r"aten::(\w*mm|linear|matmul|einsum|mv|dot)$|(?!aten::|autograd::|profiler::|torch::)\S.*?::\S")
COPIES = ("Memcpy", "Memset")

Watch = Callable[[Phase], AbstractContextManager[None]]


def unwatched(_: Phase) -> AbstractContextManager[None]:
    """Run the candidate, and see none of its kernels."""
    return nullcontext()


class Kernels:
    """What one process has looked at so far."""

    def __init__(self, device: torch.device) -> None:
        # Kineto prints two lines a start into the log of what the candidate prints; whoever wants them says so.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._device = device
        self._known: dict[tuple[object, ...], dict[str, list[str]]] = {}  # configuration -> path said -> names
        self._told = False
        self._names: set[str] = set()

    def of(self, case: Case) -> Watch:
        """For the first pass over the microbatches of a case: profiled where its configuration is new.

        Without a token nothing is multiplied, and nothing to be seen. Where the candidate does not say what it chose
        for a shape, nothing but its kernels tells, and each case is profiled.
        """
        self._names = set()
        known = _configuration(case) in self._known and not _told_by_kernels_alone(case)
        return unwatched if known or not _has_tokens(case) else self._watched

    def after(self, case: Case, path: str) -> Watch:
        """For the next pass, once one was run: profiled where it took a path of which no kernel is known."""
        known = self._names or path in self._known.get(_configuration(case), {})
        return unwatched if known or not _has_tokens(case) else self._watched

    def seen(self, case: Case, path: str, *, finished: bool) -> list[str]:
        """`forward: aten::mm`, each once: the phase and the name of what was launched since `of`.

        A configuration that finished is not looked at again: a later case, where it says that it took the same path,
        launched what the first one did.
        """
        names = sorted(self._names)[:MOST]
        if _told_by_kernels_alone(case):
            return names
        of_configuration = self._known.get(_configuration(case), {})
        if names and finished:
            self._known.setdefault(_configuration(case), {})[path] = names
        return names or (of_configuration.get(path, []) if _has_tokens(case) else [])

    @contextmanager
    def _watched(self, phase: Phase) -> Iterator[None]:
        with quiet(self._device):
            profiler = self._started()
            try:
                yield
            finally:
                if profiler is not None:
                    self._names |= {f"{phase}: {name}" for name in self._stopped(profiler)}

    def _started(self) -> profile | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the profiler warns of is no warning of the candidate's
                profiler = profile(use_device="cuda" if self._device.type == "cuda" else None, use_kineto=True)
                profiler.__enter__()
        except (RuntimeError, AssertionError) as error:
            self._tell(words(error).partition("\n")[0])
            return None
        return profiler

    def _stopped(self, profiler: profile) -> set[str]:
        """The names; none where the profiler cannot end, as after a lost CUDA context."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                profiler.__exit__(None, None, None)
        except (RuntimeError, AssertionError) as error:
            # It waits for the device before it ends; a second call finds what the first one cleared.
            with suppress(RuntimeError, AssertionError):
                profiler.__exit__(None, None, None)
            self._tell(words(error).partition("\n")[0])
            return set()
        events = profiler.kineto_results.events() if profiler.kineto_results else []
        found = {(event.name(), event.device_type().name == "CPU") for event in events}
        launched = {name for name, on_host in found if not on_host}
        if self._device.type == "cuda" and not launched:
            self._tell("it saw nothing on the device")
        operators = {name for name, on_host in found if on_host and OPERATOR.match(name)}
        return {name[:LONGEST] for name in launched | operators if not name.startswith(COPIES)}

    def _tell(self, why: str) -> None:
        """Into the worker's log, once."""
        if not self._told:
            sys.stderr.write(f"the kernels of some cases are not known: torch's profiler gave none ({why})\n")
        self._told = True


def _has_tokens(case: Case) -> bool:
    return any(sum(case.splits(k)) for k in range(case.microbatches))


def _told_by_kernels_alone(case: Case) -> bool:
    """Whether a layer is silent of what it chose for a shape: one without paths, or that leaves CUTLASS for cuBLAS."""
    return case.provider != "te" or case.path == "cutlass" or os.environ.get(CUTLASS_SWITCH, "0") not in ("", "0")


def _configuration(case: Case) -> tuple[object, ...]:
    return tuple(getattr(case, name) for name in CHOOSING)
