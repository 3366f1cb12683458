"""Which gradients must exist, where, holding what? Read from the case alone, before anything has run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Buffer, Phase, Role


class Expected(Record, frozen=True, kw_only=True):
    """One slot after one phase: which buffer must hold which content."""

    role: Role
    expert: int
    microbatch: int
    phase: Phase
    buffer: Buffer
    content: str  # value, sum, prefill+sum: a name of `compute/contents.py`
    empty: bool  # no token has reached this expert so far: nothing may be added, nothing is compared with fprop
    elements: int  # of this expert alone: its rows x columns, all of which must be compared
    shape: tuple[int, ...]  # of the whole buffer
    dtype: str
    parameter_dtype: str  # a dummy in .grad has the parameter's dtype
    flag: bool | None = None  # grad_added_to_main_grad, where the contract names it

    @property
    def slot(self) -> str:
        """The identity of one gradient: `wgrad[3]`."""
        return f"{self.role}[{self.expert}]"


LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def expected(case: Case) -> list[Expected]:
    """Every slot of a case after every phase that must fill it."""
    return [slot for k in range(case.microbatches) for slot in _microbatch(case, k)]


def _microbatch(case: Case, k: int) -> Iterator[Expected]:
    splits = case.splits(k)
    reached = [any(case.splits(j)[i] for j in range(k + 1)) for i in range(case.num_gemms)]
    n, features, rows = case.out_features, case.in_features, sum(splits)
    weight = (case.num_gemms, n, features) if case.single_grouped_weight else (n, features)
    dtype = LONG_NAMES[case.dtype]
    for i in range(case.num_gemms):
        common: dict[str, Any] = {"expert": i, "microbatch": k, "dtype": dtype, "parameter_dtype": dtype}
        yield Expected(
            role="fprop",
            phase="forward",
            buffer="output",
            content="value",
            empty=not splits[i],
            elements=splits[i] * n,
            shape=(rows, n),
            **common,
        )
        common |= {"phase": "backward"}
        yield Expected(
            role="dgrad",
            buffer="input.grad",
            content="value",
            empty=not splits[i],
            elements=splits[i] * features,
            shape=(rows, features),
            **common,
        )
        common |= {"empty": not reached[i]}
        if case.bias:
            yield Expected(role="bgrad", buffer="grad", content="sum", elements=n, shape=(n,), **common)
        common |= {"role": "wgrad", "elements": n * features, "shape": weight}
        if case.fuse_wgrad_accumulation:
            common |= {"dtype": "float32", "content": "prefill+sum", "flag": True}
            yield Expected(buffer="main_grad", **common)
        else:
            yield Expected(buffer="grad", content="sum", **common)


def in_words(case: Case) -> list[str]:
    """The delivery contract of one case, a sentence each, for `gradcheck show`."""
    dtype, steps = LONG_NAMES[case.dtype], case.microbatches
    packed = case.single_grouped_weight
    owner = "the packed weight" if packed else f"each of the {case.num_gemms} weights"
    shape = (case.num_gemms, case.out_features, case.in_features) if packed else (case.out_features, case.in_features)
    said = [
        f"{case.num_gemms} experts, y_i = x_i w_i^T{' + b_i' if case.bias else ''}, K={case.in_features}, "
        f"N={case.out_features}, {dtype}"
    ]
    said += [f"microbatch {k}: m_splits = {list(case.splits(k))}" for k in range(steps)]
    said.append(f"fprop: the output, (sum(m_splits), {case.out_features}), is x_i w_i^T for the rows of each expert i")
    said.append(f"dgrad: x.grad, (sum(m_splits), {case.in_features}) {dtype}, is grad_output_i w_i")
    over = f"the sum over {steps} microbatches of " if steps > 1 else ""
    if case.fuse_wgrad_accumulation:
        said.append(
            f"wgrad: main_grad of {owner}, {shape} float32, is its prefill plus {over}grad_output_i^T x_i; "
            f"grad_added_to_main_grad is True; .grad is None or a dummy of the parameter's shape and dtype"
        )
        said.append("wgrad of an expert without tokens: main_grad keeps its prefill, bit for bit")
    else:
        said.append(f"wgrad: .grad of {owner}, {shape} {dtype}, is {over}grad_output_i^T x_i")
        said.append("wgrad of an expert without tokens: .grad is exactly 0; an attached main_grad keeps its prefill")
    if case.bias:
        said.append(
            f"bgrad: .grad of each bias, ({case.out_features},) {dtype}, is {over}the sum of grad_output_i's rows"
        )
    return said
