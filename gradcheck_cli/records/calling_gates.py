"""What closes a path to a case by how its layer is called? Streams and graphs, and a graph that is retained."""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gate import Gate


def calling_gates(case: Case, environment: Environment) -> list[Gate | None]:
    """Each of them that is shut."""
    return [_cuda_gate(case, environment), _retained_gate(case), _captured_gate(case)]


def _retained_gate(case: Case) -> Gate | None:
    """What te saves for a backward it lets go of in it (pytorch/quantized_tensor.py, `restore_from_func_ctx`)."""
    if not case.retain_graph:
        return None
    return Gate(name="retained", found="a graph that is gone through twice", unlock="retain_graph=0", microbatch=1)


def _captured_gate(case: Case) -> Gate | None:
    """The op's legacy path reads its splits on the host, which no capture allows (`split_sizes.tolist()`)."""
    if case.cuda_graph == "none":
        return None
    unlock = "cuda_graph=none, or what the op takes on its native path: dtype=bf16 or fp16"
    return Gate(name="captured", found=f"cuda_graph={case.cuda_graph}", unlock=unlock)


def _cuda_gate(case: Case, environment: Environment) -> Gate | None:
    """Streams and graphs are CUDA's."""
    asked = [f"{name}={value}" for name, value in (("stream", case.stream), ("cuda_graph", case.cuda_graph))]
    wanted = [one for one in asked if not one.endswith(("=default", "=none"))]
    if not wanted or environment.device.startswith("cuda"):
        return None
    return Gate(name="cuda", found=f"{' and '.join(wanted)} on {environment.device}", unlock="a CUDA device")
