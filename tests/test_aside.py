"""Is a kernel on the wrong stream seen, also where it is early or late by a few milliseconds only?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from gradcheck_cli import pipeline
from gradcheck_cli.compute.engine import Engine
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.verdict import Outcome, Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = "m_splits=16,0,32:in_features=32:out_features=48"


class DelayedElsewhere(LoopLayer):
    """backward_dw() works on the stream that the layer was built on (Transformer Engine's PR 3089)."""

    def backward_dw(self) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            super().backward_dw()


class ForwardElsewhere(LoopLayer):
    """The product is computed on the default stream."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return super().forward(x, m_splits)


class WgradElsewhere(LoopLayer):
    """The wgrad GEMM of a backward goes to the default stream (Transformer Engine's PR 2873)."""

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x, *weights)
                return torch.cat([r @ w.T for r, w in zip(x.split(list(m_splits)), weights, strict=True)])

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:
                x, *weights = ctx.saved_tensors
                parts, rows = grads[0].split(list(m_splits)), x.split(list(m_splits))
                dgrad = torch.cat([g @ w for g, w in zip(parts, weights, strict=True)])
                with torch.cuda.stream(torch.cuda.default_stream()):
                    wgrads = [g.T @ r for g, r in zip(parts, rows, strict=True)]
                return dgrad, *wgrads

        y: torch.Tensor = Linear.apply(x, *self._weights)  # type: ignore[no-untyped-call]
        return y


def on(case: str, layer: str = "") -> Verdict:
    job = pipeline.job(Case.parse(case))
    target = f"test_aside:{layer}" if layer else job.target
    engine = Engine("cuda:0", [target])
    return conclude(job.case, engine.run(msgspec.structs.replace(job, target=target)), engine.environment())


@pytest.mark.parametrize("fused", (0, 1))
@pytest.mark.parametrize(
    ("layer", "stream"),
    (
        ("DelayedElsewhere", "backward_dw:delay_wgrad_compute=1"),
        ("DelayedElsewhere", "side:delay_wgrad_compute=1"),
        ("ForwardElsewhere", "side"),
        ("WgradElsewhere", "side"),
    ),
)
def test_what_runs_on_another_stream_is_found(layer: str, stream: str, fused: int) -> None:
    found = on(f"torch:api=loop:stream={stream}:fuse_wgrad={fused}:{SHAPE}", layer)
    assert not found.outcome.green
    assert found.outcome is not Outcome.RAISED, found.findings


@pytest.mark.parametrize("layer", ("", "DelayedElsewhere", "ForwardElsewhere", "WgradElsewhere"))
def test_nothing_is_said_of_it_where_all_runs_on_one_stream(layer: str) -> None:
    delayed = "delay_wgrad_compute=1:" if layer == "DelayedElsewhere" else ""
    found = on(f"torch:api=loop:fuse_wgrad=1:{delayed}{SHAPE}", layer)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])


@pytest.mark.parametrize("fused", (0, 1))
@pytest.mark.parametrize("stream", ("side", "backward", "backward_dw"))
def test_a_right_layer_passes_on_a_stream_aside(stream: str, fused: int) -> None:
    late = "delay_wgrad_compute=1:" if stream == "backward_dw" else ""
    found = on(f"torch:api=loop:stream={stream}:bias=1:fuse_wgrad={fused}:{late}{SHAPE}")
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
