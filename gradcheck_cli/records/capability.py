"""What runs where, and what opens it? Where a candidate must refuse a case, in which words, and what unlocks it.

Read from Transformer Engine's sources, 2.14 to 2.20.2: `is_module_grouped_tensor_path_supported` in
pytorch/module/grouped_linear.py, `is_op_fuser_grouped_tensor_path_supported` in pytorch/ops/basic/grouped_linear.py,
`check_grouped_gemm_requirements` in common/gemm/cublaslt_grouped_gemm.cu.
"""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gate import Gate
from gradcheck_cli.records.gates import asked_path, gates, path_of_op
from gradcheck_cli.records.recipe_rows import RECIPE_ROWS
from gradcheck_cli.records.row import OPS, Row


class Closed(Record, frozen=True, kw_only=True):
    """A refusal that is due: in which words, because of what, and what would open it."""

    name: str
    gates: tuple[Gate, ...]  # all of them are shut
    says: str = ""
    raises: str = ""
    in_backward: bool = False
    falls_back_to: str = ""
    falls_back_on: tuple[str, ...] = ("path",)

    @property
    def because(self) -> str:
        """What is there, of all that closes it."""
        return " and ".join(gate.found for gate in self.gates)

    @property
    def unlock(self) -> str:
        """All that is to be changed."""
        return " and ".join(gate.unlock for gate in self.gates)

    @property
    def microbatch(self) -> int:
        """The first that is refused."""
        return max(gate.microbatch for gate in self.gates)


BOTH: tuple[tuple[str, Literal["legacy", "native"]], ...] = (("legacy", "native"), ("native", "legacy"))
CUBLAS = r"requires cuBLAS 13\.[34]\+"
# Where a bias gradient goes through it, and since when: api, version, path, gate.
DBIAS: tuple[tuple[str, tuple[int, ...], Literal["legacy", "native"], str], ...] = (
    ("module", (2, 17), "native", "dbias"),
    ("op", (2, 16), "native", "dbias"),
    ("op", (2, 16), "legacy", "dbias_split"),
)
SINGLE = r"Single grouped parameters require the native grouped-tensor"

ROWS = (
    Row(
        name="module-leaves-cutlass", provider="te", api="module", since=(2, 9),
        path=("cutlass",), gates=("cutlass",), falls_back_to="legacy",
    ),
    Row(
        name="module-has-no-native-path", provider="te", api="module", since=(2, 9), before=(2, 17),
        path=("native",), gates=("version",), falls_back_to="legacy",
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 17), before=(2, 18),
        path=("native",), gates=("dtype", "architecture", "original", "recipe"), falls_back_to="legacy",
    ),
    Row(
        name="module-needs-cublas", provider="te", api="module", since=(2, 17), before=(2, 18),
        path=("native",), on="native", gates=("cublas",), says=CUBLAS,
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 18), before=(2, 19),
        path=("native",), gates=("dtype", "architecture", "cublas", "original", "recipe"), falls_back_to="legacy",
    ),
    Row(
        name="module-falls-back", provider="te", api="module", since=(2, 19), packed=False,
        path=("native",), gates=("dtype", "architecture", "cublas", "recipe"), falls_back_to="legacy",
    ),
    Row(
        name="module-single-weight-needs-native", provider="te", api="module", since=(2, 19),
        packed=True, path=("native",), gates=("dtype", "architecture", "cublas", "recipe"), says=SINGLE,
    ),
    Row(
        name="module-single-weight-needs-native", provider="te", api="module", since=(2, 19),
        packed=True, path=("auto", "legacy", "cutlass"), gates=("path", "dtype", "architecture", "cublas", "recipe"),
        says=r"require use_grouped_tensor=True",
    ),
    *(
        row
        for api in OPS
        for row in (
            Row(
                name="op-needs-cublas", provider="te", api=api, since=(2, 16), before=(2, 19),
                on="native", gates=("cublas",), says=CUBLAS,
            ),
            Row(
                name="op-single-weight-needs-native", provider="te", api=api, since=(2, 19), packed=True,
                gates=("dtype", "architecture", "cublas", "recipe"), says=SINGLE,
            ),
        )
    ),
    *(
        Row(
            name="op-takes-its-own-path", provider="te", api="op", since=(2, 13), path=(asked,), on=taken,
            gates=("op_path",), falls_back_to=taken,
        )
        for asked, taken in BOTH
    ),
    *(
        Row(
            name="native-takes-64-groups", provider="te", api=api, since=(2, 16), on="native",
            gates=("groups",), says=r"supports (up to|at most) 64 tensors",
        )
        for api in ("module", *OPS)
    ),
    *(
        Row(
            name="legacy-takes-no-tail", provider="te", api=api, since=(2, 9), on="legacy",
            gates=("tail",), says=r"split_sizes to sum exactly to",
        )
        for api in ("module", "op")
    ),
    Row(
        name="module-wants-splits-on-the-device", provider="te", api="module", since=(2, 19), path=("native",),
        on="native", gates=("m_splits",), says=r"requires CUDA m_splits", raises="ValueError",
    ),
    *(
        Row(
            name="no-gemm-into-bf16", provider="te", api=api, since=(2, 9),
            gates=("main_grad",), says=r"Unable to find suitable cuBLAS (grouped )?GEMM algorithm", in_backward=True,
        )
        for api in ("module", *OPS)
    ),
    *(
        Row(
            name="dbias-is-not-deterministic", provider="te", api=api, since=since, on=on,
            gates=(gate,), says=r"grouped_dbias Triton kernel uses non-deterministic atomic adds", in_backward=True,
        )
        for api, since, on, gate in DBIAS
    ),
    *RECIPE_ROWS,
    Row(
        name="op-freezes-all-or-none", provider="te", api="op", since=(2, 13),
        gates=("frozen",), says=r"has requires_grad=(True|False), but expected requires_grad=",
    ),
    *(
        Row(
            name="streams-need-cuda", provider=provider, api=api, since=(2, 6),
            gates=("cuda",), says=r"expected a CUDA device for a stream", raises="NotImplementedError",
        )
        for provider, apis in (("torch", ("loop", "grouped_mm", "op_mlp")), ("te", ("module", *OPS)))
        for api in apis
    ),
    *(
        Row(
            name="te-goes-through-a-graph-once", provider="te", api=api, since=(2, 17), in_backward=True,
            gates=("retained",), says=r"ctx must have .tensor_objects", raises="AttributeError",
        )
        for api in ("module", *OPS)
    ),
    *(
        Row(
            name="op-reads-splits-on-the-host", provider="te", api=api, since=(2, 13), on="legacy",
            gates=("captured",), says=r"Cannot copy between CPU and CUDA tensors during CUDA graph capture",
        )
        for api in OPS
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


def _due(row: Row, case: Case, environment: Environment) -> list[Closed]:
    library = environment.version(LIBRARY.get(case.provider, ""))
    if (row.provider, row.api) != (case.provider, case.api) or not row.since <= library < row.before:
        return []
    if asked_path(case, environment) not in row.path:
        return []
    packed = case.single_grouped_weight or case.single_grouped_bias
    if row.packed not in (None, packed):
        return []
    shut = tuple(gate for gate in gates(case, environment) if gate.name in row.gates)
    if not shut or (row.on and row.on != path_taken(case, environment)):
        return []
    return [
        Closed(
            name=row.name,
            gates=shut,
            says=row.says,
            raises=row.raises,
            in_backward=row.in_backward,
            falls_back_to=row.falls_back_to,
            falls_back_on=row.falls_back_on,
        )
    ]


def path_taken(case: Case, environment: Environment) -> str:
    """The path of Transformer Engine on which a case runs here, or is refused."""
    if case.api != "module":
        return path_of_op(case, environment)
    rows = [row for row in ROWS if row.falls_back_to and "path" in row.falls_back_on]
    elsewhere = [row for row in rows if _due(row, case, environment)]
    return "native" if asked_path(case, environment) == "native" and not elsewhere else "legacy"
