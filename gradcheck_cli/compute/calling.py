"""How is a layer called? Compiled, under autocast, recomputed, replayed from a CUDA graph, on a stream aside.

What a trainer wraps around a layer, and around nothing else: the gradients that are due stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from gradcheck_cli.compute.aside import Settle, on_a_stream, unsettled
from gradcheck_cli.compute.provider import DTYPES, Layer, Recomputing, Switching
from gradcheck_cli.compute.trial import every_parameter
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Fill, Phase

Splits = tuple[int, ...]
Call = Callable[[torch.Tensor, Splits], torch.Tensor]

# The phases that `stream` puts on a stream of their own.
ASIDE: dict[str, tuple[Phase, ...]] = {
    "default": (),
    "side": ("forward", "backward", "backward_dw"),
    "backward": ("backward",),
    "backward_dw": ("backward_dw",),
}


class Calling:
    """A layer as the case calls it."""

    def __init__(self, case: Case, layer: Layer, device: torch.device, fill: Fill) -> None:
        """NotImplementedError where the case asks for a stream or a graph of CUDA's on another device."""
        self._case, self._layer, self._device = case, layer, device
        if device.type != "cuda" and (case.stream != "default" or case.cuda_graph != "none"):
            raise NotImplementedError(f"expected a CUDA device for a stream or a graph of its own; found {device.type}")
        self._late = fill == "exact"
        self._aside = torch.cuda.Stream(device) if case.stream != "default" else None
        self._graphs: dict[Splits, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._compiled = 0  # graphs
        self._call: Call = self._compiling(layer.forward) if case.compile else layer.forward

    def effective(self) -> dict[str, str | int]:
        """Whether anything was compiled, where that was asked: a function that torch.compile skips runs as it is."""
        return {"compile": int(self._compiled > 0)} if self._case.compile else {}

    def forward(self, x: torch.Tensor, m_splits: Splits) -> torch.Tensor:
        """x (T, K) -> what the layer returns for it; of a captured one the replay."""
        if m_splits in self._graphs:
            return self._graphs[m_splits](x)
        call = self._call
        if self._case.autocast:
            with torch.autocast(self._device.type, DTYPES[self._case.dtype]):
                return self._recomputed(call, x, m_splits)
        return self._recomputed(call, x, m_splits)

    def infer(self, x: torch.Tensor, m_splits: Splits) -> None:
        """One forward that no backward follows, as an evaluation in the middle of a step."""
        evaluated = self._case.inference == "eval"
        if evaluated:
            cast("Switching", self._layer).train(mode=False)
        with torch.no_grad():
            self.forward(x, m_splits)
        if evaluated:
            cast("Switching", self._layer).train(mode=True)

    def capture(self, x: torch.Tensor, m_splits: Splits) -> None:
        """Capture forward and backward of these splits, once; x is any input of the right shape.

        They are run some times for it, so that what a backward leaves in main_grad is to be set back.
        """
        if m_splits in self._graphs:
            return
        module, sample = _Captured(self._layer, m_splits), (x.detach().clone().requires_grad_(x.requires_grad),)
        own = self._case.cuda_graph == "te"
        made: Any = cast("Recomputing", self._layer).graphed if own else torch.cuda.make_graphed_callables
        self._graphs[m_splits] = made(module, sample)

    def aside(self, phase: Phase, k: int, given: Sequence[torch.Tensor]) -> AbstractContextManager[Settle]:
        """Run a phase on the case's own stream, if it asks for one; of what is given it needs the content.

        Which of the streams is kept waiting changes after the first microbatch: the first use of a kernel may wait for
        all of them (CUDA's lazy loading), and would hide what comes too late.
        """
        if self._aside is None or phase not in ASIDE[self._case.stream]:
            return nullcontext(unsettled)
        return on_a_stream(self._aside, given, late=self._late or k == 0)

    def _compiling(self, call: Call) -> Call:
        """torch.compile with aot_eager: the graphs of forward and backward that a compiler gets, run by torch itself.

        It needs no C++ compiler, and is the same on CPU and CUDA. What an earlier case compiled is dropped: past some
        graphs of one function torch.compile leaves it uncompiled.
        """
        from torch._dynamo import lookup_backend  # noqa: PLC0415  it takes seconds

        torch.compiler.reset()
        aot_eager = lookup_backend("aot_eager")

        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
            self._compiled += 1
            return aot_eager(graph, inputs)

        compiled: Call = torch.compile(call, backend=backend)
        return compiled

    def _recomputed(self, call: Call, x: torch.Tensor, m_splits: Splits) -> torch.Tensor:
        how = self._case.recompute
        if how == "none" or not torch.is_grad_enabled():
            return call(x, m_splits)
        if how == "te":
            return cast("Recomputing", self._layer).checkpoint(call, x, m_splits)
        y: torch.Tensor = checkpoint(call, x, m_splits, use_reentrant=how == "reentrant")
        return y


class _Captured(torch.nn.Module):
    """The layer for one list of splits, with its very parameters: what is captured must own them."""

    def __init__(self, layer: Layer, m_splits: Splits) -> None:
        super().__init__()
        self._call: Any = [layer]  # in a list: the layer may be a module, whose parameters would stand here twice
        self._m_splits = m_splits
        self.owned = torch.nn.ParameterList(every_parameter(layer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._call[0].forward(x, self._m_splits)
        return y


@contextmanager
def determinism(case: Case) -> Iterator[None]:
    """Around all that a candidate does, where the case asks for determinism.

    Transformer Engine reads a variable for it, which its worker has (`plugins.py`). What lies in memory that nobody
    should read stays what gradcheck has put there: torch would fill its own with NaN.
    """
    if not case.deterministic or case.provider == "te":
        yield
        return
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)
        memory.fill_uninitialized_memory = fills
