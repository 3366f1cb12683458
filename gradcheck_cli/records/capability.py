"""What runs where, and what opens it? Where a candidate must refuse a case, in which words, and what unlocks it.

Read from Transformer Engine's sources, 2.14 to 2.20.2: `is_module_grouped_tensor_path_supported` in
pytorch/module/grouped_linear.py, `is_op_fuser_grouped_tensor_path_supported` in pytorch/ops/basic/grouped_linear.py,
`check_grouped_gemm_requirements` in common/gemm/cublaslt_grouped_gemm.cu.
"""

from __future__ import annotations

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment, Version

SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"


class Gate(Record, frozen=True, kw_only=True):
    """Something that closes the native grouped path: what it is here, and what would open it."""

    name: str  # version, dtype, architecture, cublas, path, torch
    found: str
    unlock: str


class Row(Record, frozen=True, kw_only=True):
    """One line of the table: for these cases and versions, these gates lead to this response.

    Exactly one of `says` (a pattern of the exception's message) and `falls_back_to` (the path that runs instead,
    silently) is given.
    """

    name: str
    provider: str
    api: str
    since: Version
    before: Version = (9999,)
    path: tuple[str, ...] = ("auto", "legacy", "native")
    single_grouped_weight: bool | None = None
    # Compute capabilities, both included, on which the candidate gets as far as these gates.
    architectures: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (99, 9))
    gates: tuple[str, ...]
    says: str = ""
    raises: str = "RuntimeError"  # the type of the exception that says so
    in_backward: bool = False  # the candidate may say so as late as in the first backward
    falls_back_to: str = ""


class Closed(Record, frozen=True, kw_only=True):
    """A refusal that is due: in which words, because of what, and what would open it."""

    name: str
    because: str
    unlock: str
    says: str = ""
    raises: str = ""
    in_backward: bool = False
    falls_back_to: str = ""


CUBLAS = r"requires cuBLAS 13\.[34]\+"
SINGLE = r"Single grouped parameters require the native grouped-tensor"
HOPPER_TO_BLACKWELL = ((9, 0), (11, 0))

ROWS = (
    Row(
        name="module-has-no-native-path", provider="te", api="module", since=(2, 9), before=(2, 17),
        path=("native",), gates=("version",), falls_back_to="legacy",
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 17), before=(2, 18),
        path=("native",), gates=("dtype", "architecture"), falls_back_to="legacy",
    ),
    Row(
        name="module-needs-cublas", provider="te", api="module", since=(2, 17), before=(2, 18),
        path=("native",), architectures=HOPPER_TO_BLACKWELL, gates=("cublas",), says=CUBLAS,
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 18), before=(2, 19),
        path=("native",), gates=("dtype", "architecture", "cublas"), falls_back_to="legacy",
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 19), single_grouped_weight=False,
        path=("native",), gates=("dtype", "architecture", "cublas"), falls_back_to="legacy",
    ),
    Row(
        name="module-single-weight-needs-native", provider="te", api="module", since=(2, 19),
        single_grouped_weight=True, path=("native",), gates=("dtype", "architecture", "cublas"), says=SINGLE,
    ),
    Row(
        name="module-single-weight-needs-native", provider="te", api="module", since=(2, 19),
        single_grouped_weight=True, path=("auto", "legacy"), gates=("path", "dtype", "architecture", "cublas"),
        says=r"require use_grouped_tensor=True",
    ),
    Row(
        name="op-needs-cublas", provider="te", api="op", since=(2, 16), before=(2, 17),
        architectures=((10, 0), (99, 9)), gates=("cublas",), says=CUBLAS,
    ),
    Row(
        name="op-needs-cublas", provider="te", api="op", since=(2, 17), before=(2, 19),
        architectures=HOPPER_TO_BLACKWELL, gates=("cublas",), says=CUBLAS,
    ),
    Row(
        name="op-single-weight-needs-native", provider="te", api="op", since=(2, 19), single_grouped_weight=True,
        gates=("dtype", "architecture", "cublas"), says=SINGLE,
    ),
    Row(
        name="no-gemm-into-bf16", provider="te", api="module", since=(2, 9),
        gates=("main_grad",), says=r"Unable to find suitable cuBLAS (grouped )?GEMM algorithm", in_backward=True,
    ),
    Row(
        name="no-gemm-into-bf16", provider="te", api="op", since=(2, 9),
        gates=("main_grad",), says=r"Unable to find suitable cuBLAS (grouped )?GEMM algorithm", in_backward=True,
    ),
    Row(
        name="op-freezes-all-or-none", provider="te", api="op", since=(2, 13),
        gates=("frozen",), says=r"has requires_grad=(True|False), but expected requires_grad=",
    ),
    Row(
        name="torch-without-grouped-mm", provider="torch", api="grouped_mm", since=(2, 6),
        gates=("torch",), says=r"grouped_mm is not in torch", raises="NotImplementedError",
    ),
    Row(
        name="grouped-mm-needs-alignment", provider="torch", api="grouped_mm", since=(2, 6),
        gates=("alignment",), says=r"strides should be multiple of 16 bytes", in_backward=True,
    ),
)  # fmt: skip

LIBRARY = {"te": "transformer_engine", "torch": "torch"}


def closed(case: Case, environment: Environment) -> list[Closed]:
    """Every refusal that is due for a case in an environment; empty where the case must run."""
    return [due for row in ROWS for due in _due(row, case, environment)]


def gates(case: Case, environment: Environment) -> list[Gate]:
    """Everything that closes the native grouped path to a case here."""
    return [gate for gate in (*_te_gates(case, environment), _torch_gate(environment), _alignment_gate(case)) if gate]


def _due(row: Row, case: Case, environment: Environment) -> list[Closed]:
    library = environment.version(LIBRARY.get(case.provider, ""))
    here = environment.compute_capability or HOPPER_TO_BLACKWELL[0]
    if (row.provider, row.api) != (case.provider, case.api) or not row.since <= library < row.before:
        return []
    if asked_path(case, environment) not in row.path:
        return []
    first, last = row.architectures
    if row.single_grouped_weight not in (None, case.single_grouped_weight) or not first <= here <= last:
        return []
    shut = [gate for gate in gates(case, environment) if gate.name in row.gates]
    if not shut:
        return []
    return [
        Closed(
            name=row.name,
            because=" and ".join(gate.found for gate in shut),
            unlock=" and ".join(gate.unlock for gate in shut),
            says=row.says,
            raises=row.raises,
            in_backward=row.in_backward,
            falls_back_to=row.falls_back_to,
        )
    ]


def asked_path(case: Case, environment: Environment) -> str:
    """The path a case asks of the module: the user's own variable decides where the case leaves it open."""
    if case.path == "auto" and case.api == "module" and environment.variables.get(SWITCH, "0") not in ("", "0"):
        return "native"
    return case.path


def _te_gates(case: Case, environment: Environment) -> list[Gate | None]:
    return [
        _version_gate(case, environment),
        _dtype_gate(case),
        _architecture_gate(environment),
        _cublas_gate(case, environment),
        _path_gate(case, environment),
        _main_grad_gate(case),
        _frozen_gate(case),
    ]


def _version_gate(case: Case, environment: Environment) -> Gate | None:
    if case.provider != "te" or environment.version("transformer_engine") >= (2, 17):
        return None
    found = f"Transformer Engine {environment.versions.get('transformer_engine', '')}, whose module has no native path"
    return Gate(name="version", found=found, unlock="Transformer Engine 2.17 or newer")


def _dtype_gate(case: Case) -> Gate | None:
    if case.dtype != "fp32":
        return None
    return Gate(name="dtype", found="fp32 operands", unlock="dtype=bf16 or dtype=fp16")


def _architecture_gate(environment: Environment) -> Gate | None:
    capability = environment.compute_capability
    if capability is None or HOPPER_TO_BLACKWELL[0] <= capability <= HOPPER_TO_BLACKWELL[1]:
        return None
    found = f"compute capability {capability[0]}.{capability[1]}"
    return Gate(name="architecture", found=found, unlock="a GPU of compute capability 9.0 to 11.0 (Hopper, Blackwell)")


def _cublas_gate(case: Case, environment: Environment) -> Gate | None:
    """Native GEMMs need cuBLASLt 13.3, on Hopper 13.4; fp32 never gets as far as asking."""
    needed = (13, 4) if (environment.compute_capability or (9, 0)) < (10, 0) else (13, 3)
    if case.dtype == "fp32" or environment.version("cublaslt") >= needed:
        return None
    found = f"cuBLASLt {environment.versions.get('cublaslt', '(none)')}"
    return Gate(name="cublas", found=found, unlock=f"cuBLASLt {needed[0]}.{needed[1]} or newer at run time")


def _path_gate(case: Case, environment: Environment) -> Gate | None:
    if asked_path(case, environment) == "native" or case.api != "module":
        return None
    return Gate(name="path", found=f"path={case.path}", unlock="path=native (use_grouped_tensor=True)")


def _main_grad_gate(case: Case) -> Gate | None:
    """What cuBLASLt multiplies it writes in the operands' own dtype or in fp32 (cublasLtMatmul, supported types)."""
    if not case.fuse_wgrad_accumulation or case.main_grad_dtype in ("fp32", case.dtype):
        return None
    found = f"a {case.main_grad_dtype} main_grad beside {case.dtype} operands, for which cuBLASLt has no GEMM"
    return Gate(name="main_grad", found=found, unlock="main_grad_dtype=fp32 or dtype=bf16")


def _frozen_gate(case: Case) -> Gate | None:
    """The op asks all its weights and biases for the same requires_grad (`_get_weights`, `_get_biases` of the op)."""
    weights = {"none": {True}, "all": {False}}.get(case.frozen_weights, {True, False})
    asked = weights | ({not case.frozen_bias} if case.bias else set())
    if case.api != "op" or len(asked) == 1:
        return None
    return Gate(name="frozen", found="weights and biases that are frozen in part", unlock="all of them frozen, or none")


def _torch_gate(environment: Environment) -> Gate | None:
    if environment.version("torch") >= (2, 10):
        return None
    found = f"torch {environment.versions.get('torch', '')}"
    return Gate(name="torch", found=found, unlock="a torch with torch.nn.functional.grouped_mm (2.10 or newer)")


def _alignment_gate(case: Case) -> Gate | None:
    """Rows of x, weights and outputs must be multiples of 16 bytes: aten/src/ATen/native/GroupedMMUtils.h."""
    elements = 16 // (4 if case.dtype == "fp32" else 2)
    odd = [f"{name}={size}" for name, size in _features(case).items() if size % elements]
    if not odd:
        return None
    wanted = " and ".join(name for name in _features(case))
    return Gate(
        name="alignment",
        found=f"rows that are no multiple of 16 bytes ({', '.join(odd)} in {case.dtype})",
        unlock=f"{wanted} that are multiples of {elements} in {case.dtype}",
    )


def _features(case: Case) -> dict[str, int]:
    return {"in_features": case.in_features, "out_features": case.out_features}
