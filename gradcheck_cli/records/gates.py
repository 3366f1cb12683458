"""What closes a path to a case here, and what would open it? From the case and the environment alone."""

from __future__ import annotations

import msgspec

from gradcheck_cli.records.calling_gates import calling_gates
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.cutlass_gates import cutlass_gates
from gradcheck_cli.records.deterministic_gates import deterministic_gates
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gate import Gate
from gradcheck_cli.records.recipe import in_fp8
from gradcheck_cli.records.recipe_gates import recipe_gates

SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"
MOST_GROUPS = 64
HOPPER_TO_BLACKWELL = ((9, 0), (11, 0))


def gates(case: Case, environment: Environment) -> list[Gate]:
    """Everything that closes the native grouped path to a case here, or the path that it asks an op for."""
    return [*_gates(case, environment), *_op_path_gate(case, environment)]


def _gates(case: Case, environment: Environment) -> list[Gate]:
    return [
        gate
        for gate in (
            *_te_gates(case, environment),
            _torch_gate(environment),
            _alignment_gate(case),
            *calling_gates(case, environment),
        )
        if gate
    ]


def asked_path(case: Case, environment: Environment) -> str:
    """The path a case asks of the module: the user's own variable decides where the case leaves it open."""
    if case.path == "auto" and case.api == "module" and environment.variables.get(SWITCH, "0") not in ("", "0"):
        return "native"
    return case.path


def path_of_op(case: Case, environment: Environment) -> str:
    """The path that the fusible op chooses by itself: native where nothing that it asks for is shut."""
    return "legacy" if _shut_to_op(case, environment) else "native"


def _shut_to_op(case: Case, environment: Environment) -> list[Gate]:
    """What keeps the op from its native path.

    In pytorch/ops/basic/grouped_linear.py, from 2.19 on `is_op_fuser_grouped_tensor_path_supported`: none up to 2.15,
    on Blackwell alone in 2.16, without a look at cuBLASLt up to 2.18.
    """
    te, here = environment.version("transformer_engine"), environment.compute_capability or HOPPER_TO_BLACKWELL[0]
    first = (2, 16) if here >= (10, 0) else (2, 17)
    if te < first:
        found = f"Transformer Engine {environment.versions.get('transformer_engine', '')}, whose op has no native path"
        return [Gate(name="version", found=found, unlock=f"Transformer Engine 2.{first[1]} or newer")]
    recipe = {"recipe": (2, 16), "recipe_blackwell": (2, 18)}
    since = {**recipe, "dtype": (2, 16), "architecture": (2, 17), "cublas": (2, 19)}
    return [gate for gate in _gates(case, environment) if gate.name in since and te >= since[gate.name]]


def _op_path_gate(case: Case, environment: Environment) -> list[Gate]:
    """An op that was asked for the path that it does not take."""
    shut = _shut_to_op(case, environment) if (case.provider, case.api) == ("te", "op") else []
    taken = "legacy" if shut else "native"
    if (case.provider, case.api) != ("te", "op") or case.path in ("auto", taken):
        return []
    if shut:
        return [msgspec.structs.replace(gate, name="op_path") for gate in shut]
    asks = environment.version("transformer_engine") >= (2, 19)
    packed = (
        "separate weights and biases, and " if asks and (case.single_grouped_weight or case.single_grouped_bias) else ""
    )
    unlock = f"{packed}dtype=fp32 or recipe=DelayedScaling{' or an older cuBLASLt' if asks else ''}"
    return [Gate(name="op_path", found="the op takes its native path by itself here", unlock=unlock)]


def _te_gates(case: Case, environment: Environment) -> list[Gate | None]:
    return [
        _version_gate(case, environment),
        _dtype_gate(case),
        _architecture_gate(environment),
        _cublas_gate(case, environment),
        _path_gate(case, environment),
        _main_grad_gate(case),
        _frozen_gate(case),
        _splits_gate(case),
        _groups_gate(case, environment),
        _tail_gate(case),
        _original_gate(case, environment),
        *recipe_gates(case, environment),
        *cutlass_gates(case, environment),
        *deterministic_gates(case, environment),
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
    """Native GEMMs need cuBLASLt 13.3, on Hopper 13.4; fp32 never asks, and recipes ask Hopper for more."""
    hopper = (environment.compute_capability or (9, 0)) < (10, 0)
    needed = (13, 4) if hopper else (13, 3)
    if case.dtype == "fp32" or (hopper and case.recipe != "none") or environment.version("cublaslt") >= needed:
        return None
    found = f"cuBLASLt {environment.versions.get('cublaslt', '(none)')}"
    return Gate(name="cublas", found=found, unlock=f"cuBLASLt {needed[0]}.{needed[1]} or newer at run time")


def _path_gate(case: Case, environment: Environment) -> Gate | None:
    if asked_path(case, environment) == "native" or case.api != "module":
        return None
    return Gate(name="path", found=f"path={case.path}", unlock="path=native (use_grouped_tensor=True)")


def _main_grad_gate(case: Case) -> Gate | None:
    """What cuBLASLt multiplies it writes in the operands' own dtype or in fp32 (cublasLtMatmul, supported types).

    Frozen weights have no wgrad GEMM (`weights[0].requires_grad`); of FP8 operands it writes bf16 beside any dtype.
    """
    accumulates = case.fuse_wgrad_accumulation and case.frozen_weights != "all"
    if not accumulates or in_fp8(case, "wgrad") or case.main_grad_dtype in ("fp32", case.dtype):
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


def _splits_gate(case: Case) -> Gate | None:
    if case.m_splits_as not in ("list", "host"):
        return None
    return Gate(name="m_splits", found=f"m_splits_as={case.m_splits_as}", unlock="m_splits_as=device")


def _groups_gate(case: Case, environment: Environment) -> Gate | None:
    """Lists of weights, and all biases, go to native kernels 64 at most (`kMaxGroups`, cublaslt_grouped_gemm.cu).

    The module handed on a packed weight as such a list as well, up to 2.18, as seen on an H200.
    """
    as_a_list = case.api == "module" and environment.version("transformer_engine") < (2, 19)
    if case.num_gemms <= MOST_GROUPS or (case.single_grouped_weight and not case.bias and not as_a_list):
        return None
    found = f"{case.num_gemms} experts, and a native kernel that takes {MOST_GROUPS} of what they have each for itself"
    other = "" if as_a_list else ", or single_grouped_weight=1 and bias=0"
    return Gate(name="groups", found=found, unlock=f"num_gemms <= {MOST_GROUPS}{other}")


def _tail_gate(case: Case) -> Gate | None:
    """The legacy path cuts x by m_splits, which must account for every row (`torch.split` in its forward)."""
    if case.padded_tail == "none":
        return None
    return Gate(name="tail", found="rows past sum(m_splits) on the legacy path", unlock="the native path")


def _original_gate(case: Case, environment: Environment) -> Gate | None:
    """2.17 and 2.18 keep off the native path with it; 2.19 does not."""
    if not case.save_original_input or environment.version("transformer_engine") >= (2, 19):
        return None
    return Gate(name="original", found="save_original_input=1", unlock="Transformer Engine 2.19 or newer")


def _torch_gate(environment: Environment) -> Gate | None:
    if environment.version("torch") >= (2, 10):
        return None
    found = f"torch {environment.versions.get('torch', '')}"
    return Gate(name="torch", found=found, unlock="a torch with torch.nn.functional.grouped_mm (2.10 or newer)")


def _alignment_gate(case: Case) -> Gate | None:
    """Rows of x, weights and grad_output must be multiples of 16 bytes: aten/src/ATen/native/GroupedMMUtils.h."""
    elements = 16 // (4 if case.dtype == "fp32" else 2)
    # Of a grad_output that lies transposed the tokens are in its rows.
    sizes = {"in_features": case.in_features} | (
        {} if case.grad_output == "transposed" else {"out_features": case.out_features}
    )
    odd = [f"{name}={size}" for name, size in sizes.items() if size % elements]
    if not odd:
        return _columns_gate(case, elements)
    return Gate(
        name="alignment",
        found=f"rows that are no multiple of 16 bytes ({', '.join(odd)} in {case.dtype})",
        unlock=f"{' and '.join(sizes)} that are multiples of {elements} in {case.dtype}",
    )


def _columns_gate(case: Case, elements: int) -> Gate | None:
    """The same of x or grad_output where it lies transposed: the tokens of each microbatch are in its rows."""
    odd = [k for k in range(case.microbatches) if case.rows(k) % elements]
    if not odd or "transposed" not in (case.grad_output, case.input_layout):
        return None
    return Gate(
        name="alignment",
        found=f"a transposed matrix whose rows are no multiple of 16 bytes, {elements} tokens in {case.dtype}",
        unlock="grad_output=random and input_layout=contiguous",
        microbatch=odd[0],
    )
