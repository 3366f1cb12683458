"""Which object answers to a name? Built-ins as dotted strings and entry points, imported on demand."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import metadata
from typing import Any

from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.records import battery, case
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.kernels import CUTLASS_SWITCH

GROUP = "gradcheck.providers"
_PROVIDERS = "gradcheck_cli.compute.providers"

# For small cases: threads would wait for each other longer than they compute. One that the user sets wins.
# glibc gives large blocks back at once and faults new ones in page by page: more than half of a large case's
# time. Kept, they also come back as they were left, and not zeroed.
_TORCH_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
}
# torch.use_deterministic_algorithms lets no cuBLAS call pass without it (aten/src/ATen/Context.cpp,
# `alertCuBLASConfigNotDeterministic`).
_CUBLAS_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

BUILT_IN = {
    "te": Candidate(
        name="te",
        summary="NVIDIA Transformer Engine: te.GroupedLinear (module), te.ops.GroupedLinear (op), a chain (op_mlp)",
        apis={
            "module": f"{_PROVIDERS}.te_module:build",
            "op": f"{_PROVIDERS}.te_ops:build",
            "op_mlp": f"{_PROVIDERS}.te_op_mlp:build",
        },
        distribution="transformer-engine",
        needs_cuda=True,
        # Without it Transformer Engine 2.15+ turns single_grouped_weight off with a mere warning
        # (transformer_engine/pytorch/utils.py, resolve_grouped_linear_single_param_flags).
        environment={"NVTE_GROUPED_LINEAR_SINGLE_PARAM": "1"},
        # Read at each grouped GEMM of the legacy path (common/gemm/cublaslt_gemm.cu), to which native may fall back.
        switches={
            "cutlass": {CUTLASS_SWITCH: "1"},
            "legacy": {CUTLASS_SWITCH: "0"},
            "native": {CUTLASS_SWITCH: "0"},
        },
        # transformer_engine/pytorch/triton/grouped_dbias_dscales.py, `_is_deterministic_mode`.
        deterministic={"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"},
        # CUBLAS_COMPUTE_32F_FAST_TF32 for fp32 in and out (common/gemm/cublaslt_gemm.cu).
        fp32_products="tf32",
    ),
    "torch": Candidate(
        name="torch",
        summary="plain torch: torch.nn.functional.grouped_mm, F.linear per expert (loop), a chain (op_mlp)",
        apis={
            "grouped_mm": f"{_PROVIDERS}.torch_grouped_mm:build",
            "loop": f"{_PROVIDERS}.torch_loop:build",
            "op_mlp": f"{_PROVIDERS}.torch_op_mlp:build",
        },
        distribution="torch",
        environment=_TORCH_ENVIRONMENT,
        deterministic=_CUBLAS_DETERMINISTIC,
        main_grad_written_by="hook",
    ),
}

# Wrong on purpose, and so on trial only where they are asked for by name: no matrix and no list of candidates has them.
ON_PURPOSE = {
    "faults": Candidate(
        name="faults",
        summary="the torch loop with one fault, its api: red in every case in which the fault has a place",
        apis=dict.fromkeys(battery.APIS, f"{_PROVIDERS}.faults:build"),
        distribution="torch",
        environment=_TORCH_ENVIRONMENT,
        deterministic=_CUBLAS_DETERMINISTIC,
        main_grad_written_by="hook",
    ),
}


@cache
def candidates() -> dict[str, Candidate]:
    """Every provider by name: the built-in ones, then plug-ins, which are entry points of `gradcheck.providers`."""
    return BUILT_IN | {name: found for name, found in _plugged_in().items() if isinstance(found, Candidate)}


@cache
def broken() -> dict[str, str]:
    """Plug-ins that cannot be used, by the name of their entry point, and why; the others are none the worse."""
    return {name: found for name, found in _plugged_in().items() if isinstance(found, str)}


def candidate(name: str) -> Candidate:
    """One provider by name; UsageError lists those there are, HarnessError says what is wrong with a plug-in."""
    if name in ON_PURPOSE:
        return ON_PURPOSE[name]
    known = candidates()
    if name not in known and name in broken():
        raise HarnessError(broken()[name])
    if name not in known:
        raise UsageError(f"unknown provider {shortened(repr(name))}; the providers are: {', '.join(known)}")
    return known[name]


def target(name: str, api: str) -> str:
    """The dotted string of a provider's entry point; UsageError lists the provider's apis."""
    apis = candidate(name).apis
    if api not in apis:
        raise UsageError(f"provider {name} has no api {shortened(repr(api))}; its apis are: {', '.join(apis)}")
    return apis[api]


def switches(asked: case.Case) -> dict[str, str]:
    """The variables that a case asks of its worker against the user's; 0 is what one that nobody has set is.

    Only those that are otherwise not so: cases that need no other worker then share one.
    """
    by = candidate(asked.provider)
    needed = {
        name: value for name, value in by.switches.get(asked.path, {}).items() if os.environ.get(name, "0") != value
    }
    return {**needed, **(by.deterministic if asked.deterministic else {})}


def variables(asked: case.Case) -> dict[str, str]:
    """All that a script of a case sets: whoever runs it may have set something else."""
    by = candidate(asked.provider)
    return {**by.environment, **by.switches.get(asked.path, {}), **(by.deterministic if asked.deterministic else {})}


def axis_value(name: str, value: Any) -> Any:
    """An axis value in its own type; as provider and api only what answers here. ValueError says what is allowed."""
    # Plug-ins are looked for only where no built-in answers: scanning the entry points of a large environment is slow.
    if name in ("provider", "api") and value not in _names(name, BUILT_IN | ON_PURPOSE):
        known = _names(name, candidates())
        if value not in known:
            raise ValueError(f"{name}={shortened(value)}: expected {' or '.join(known)}")
    return case.axis_value(name, value)


def allowed_values(name: str) -> str:
    """What an axis may be, in words; as provider and api whatever answers here."""
    return " or ".join(_names(name, candidates())) if name in ("provider", "api") else case.allowed_values(name)


def _names(axis: str, providers: dict[str, Candidate]) -> list[str]:
    if axis == "provider":
        return list(providers)
    return list(dict.fromkeys(api for candidate in providers.values() for api in candidate.apis))


@cache
def _plugged_in() -> dict[str, Candidate | str]:
    return {entry.name: _from_entry_point(entry) for entry in metadata.entry_points(group=GROUP)}


def _from_entry_point(entry: metadata.EntryPoint) -> Candidate | str:
    """The candidate of a plug-in, or what is wrong with it."""
    where = f"plug-in {entry.name} ({entry.value})"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plug-in may fail in any way, and says so where it is asked for
        return f"{where} cannot be imported: {type(error).__name__}: {error}"
    if not isinstance(found, Candidate):
        return f"{where} is a {type(found).__name__}; expected a gradcheck_cli.records.candidate.Candidate"
    if entry.name in BUILT_IN | ON_PURPOSE or found.name != entry.name:
        return f"{where} names its candidate {found.name!r}; expected the name of the entry point, and no built-in one"
    wrong = [name for name in (found.name, *found.apis) if not re.fullmatch(case.NAME, name)]
    if wrong:
        return f"{where} is called {', '.join(wrong)}; expected names and apis of lower-case letters, digits and _"
    return found
