"""Which gradients must exist, where, holding what? Read from the case alone, before anything has run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from gradcheck_cli.judge.called import called_in_words, order_in_words, steps_in_words
from gradcheck_cli.judge.formulas import formulas_of, middle
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import (
    Dummy,
    anew,
    delivered_in,
    due,
    dummy_of,
    frozen,
    hooks_of,
    is_first,
    overwriting,
    overwriting_at_all,
    since_step,
    stepped_after,
    steps_of,
    x_dtype,
)
from gradcheck_cli.records.observation import Buffer, Phase, Role
from gradcheck_cli.records.recipe import quantised_in_words
from gradcheck_cli.records.roles import is_chain, part, weights_of


class Expected(Record, frozen=True, kw_only=True):
    """One slot after one phase: which buffer must hold which content."""

    role: Role
    expert: int
    microbatch: int
    phase: Phase
    buffer: Buffer
    content: str  # value, sum, prefill+sum, written: a name of `compute/contents.py`; or NOTHING, or BEFORE
    empty: bool  # no token has reached this expert so far: nothing may be added, nothing is compared with fprop
    elements: int  # of this expert alone: its rows x columns, all of which must be compared
    shape: tuple[int, ...]  # of the whole buffer
    dtype: str
    parameter_dtype: str  # a dummy in .grad has the parameter's dtype
    flag: bool | None = None  # grad_added_to_main_grad, where the contract names it
    dummy: Dummy = "any"
    hooks: int | None = None  # how often the backward before must hand autograd the gradient, or a dummy

    @property
    def slot(self) -> str:
        """The identity of one gradient: `wgrad[3]`."""
        return f"{self.role}[{self.expert}]"


NOTHING = "nothing"  # frozen: no gradient may arrive
BEFORE = "before"  # what the buffer held before the phase
LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def expected(case: Case) -> list[Expected]:
    """Every slot of a case after every phase that must fill it."""
    return [slot for step in steps_of(case) for k in step for slot in _microbatch(case, k, last=k == step[-1])]


def _microbatch(case: Case, k: int, *, last: bool) -> Iterator[Expected]:
    """What one microbatch must fill; of a backward's last one the parameters as well."""
    since = since_step(case, k)
    reached = [any(case.splits(j)[i] for j in range(since, k + 1)) for i in range(case.num_gemms)]
    dtype = LONG_NAMES[case.dtype]
    for i in range(case.num_gemms):
        common: dict[str, Any] = {"expert": i, "microbatch": k, "dtype": dtype, "parameter_dtype": dtype}
        yield _by_token(case, "fprop", "forward", "output", common)
        dgrad = _by_token(case, "dgrad", "backward", "input.grad", common | {"dtype": LONG_NAMES[x_dtype(case)]})
        yield _nothing(dgrad) if case.frozen_input else dgrad
        if is_chain(case):
            yield _by_token(case, "pgrad", "backward", "probs.grad", common)
        if not last:
            continue
        if case.delay_wgrad_compute and case.main_grad == "attached":
            yield _held_back(case, common)
        if stepped_after(case, k):
            yield _stepped(case, common)
        common |= {"empty": not reached[i], "phase": delivered_in(case)}
        if case.bias:
            n = case.out_features
            whole = (case.num_gemms, n) if case.single_grouped_bias else (n,)
            bgrad = Expected(role="bgrad", buffer="grad", content="sum", elements=n, shape=whole, **common)
            yield _nothing(bgrad) if case.frozen_bias else bgrad
        yield from (_wgrad(case, role, common) for role in weights_of(case))


def _by_token(case: Case, role: Role, phase: Phase, buffer: Buffer, common: dict[str, Any]) -> Expected:
    k, own = common["microbatch"], part(case, role)
    tokens = case.splits(k)[common["expert"]]
    return Expected(
        role=role,
        phase=phase,
        buffer=buffer,
        content="value",
        empty=not tokens,
        elements=tokens * math.prod(own),
        shape=(case.rows(k), *own),
        **common,
    )


def _wgrad(case: Case, role: Role, common: dict[str, Any]) -> Expected:
    own = part(case, role)
    shape = (case.num_gemms, *own) if case.single_grouped_weight else own
    i, k = common["expert"], common["microbatch"]
    where = due(case, i, k)
    slot = Expected(role=role, buffer="grad", content="sum", elements=math.prod(own), shape=shape, **common)
    if where is None:
        return _nothing(slot)
    slot = msgspec.structs.replace(slot, hooks=hooks_of(case))
    if where.buffer == "grad":
        return slot
    return msgspec.structs.replace(
        slot,
        empty=not any(case.splits(j)[i] for j in range(where.since, k + 1)),
        buffer=where.buffer,
        dtype=LONG_NAMES[case.main_grad_dtype],
        content="written" if anew(case) else "prefill+sum",
        flag=True if case.grad_added_to_main_grad == "attached" else None,
        dummy=dummy_of(case),
    )


def _held_back(case: Case, common: dict[str, Any]) -> Expected:
    """main_grad after a backward that leaves its wgrad to backward_dw."""
    return Expected(
        role="wgrad",
        phase="backward",
        buffer="main_grad",
        content=BEFORE,
        empty=False,
        elements=case.out_features * case.in_features,
        shape=(case.out_features, case.in_features),
        **common,
    )


def _stepped(case: Case, common: dict[str, Any]) -> Expected:
    """The weight after the step of an optimizer."""
    held = msgspec.structs.replace(_held_back(case, common), phase="step", buffer="weight")
    return msgspec.structs.replace(held, dtype=held.parameter_dtype)


def _nothing(slot: Expected) -> Expected:
    return msgspec.structs.replace(slot, content=NOTHING, elements=0)


def in_words(case: Case) -> list[str]:
    """The delivery contract of one case, a sentence each, for `gradcheck show`."""
    dtype, steps, formulas = LONG_NAMES[case.dtype], case.microbatches, formulas_of(case)
    said = [
        f"{case.num_gemms} experts, y_i = {formulas['fprop']}{' + b_i' if case.bias else ''}{middle(case)}, "
        f"K={case.in_features}, N={case.out_features}, {dtype}"
    ]
    said += [f"microbatch {k}: m_splits = {list(case.splits(k))}{_called_with(case, k)}" for k in range(steps)]
    said += quantised_in_words(case)
    (columns,) = part(case, "fprop")
    said.append(f"fprop: the output, (sum(m_splits), {columns}), is {formulas['fprop']} for the rows of each expert i")
    if case.frozen_input:
        said.append("dgrad: x asks for none, and x.grad stays None")
    else:
        what = f"(sum(m_splits), {case.in_features}) {LONG_NAMES[x_dtype(case)]}, is {formulas['dgrad']}"
        said.append(f"dgrad: x.grad, {what}")
    said += [line for role in weights_of(case) for line in _wgrad_in_words(case, role, formulas[role])]
    if is_chain(case):
        said.append(f"pgrad: probs.grad, (sum(m_splits),) {dtype}, is {formulas['pgrad']}")
    return [*said, *_bgrad_in_words(case), *steps_in_words(case), *called_in_words(case), *order_in_words(case)]


def _bgrad_in_words(case: Case) -> Iterator[str]:
    if not case.bias:
        return
    right = f"is {_over(case)}the sum of grad_output_i's rows"
    frozen_ = "asks for none, and stays None"
    owner = f"the packed bias, ({case.num_gemms}, " if case.single_grouped_bias else "each bias, ("
    owner += f"{case.out_features})" if case.single_grouped_bias else f"{case.out_features},)"
    yield f"bgrad: .grad of {owner} {LONG_NAMES[case.dtype]}, {frozen_ if case.frozen_bias else right}"
    if case.return_bias:
        yield "the layer returns its biases beside x_i w_i^T, and the trainer adds them to the rows"


def _called_with(case: Case, k: int) -> str:
    first = is_first(case, k)
    return "" if first is None else f", is_first_microbatch={first}"


def _over(case: Case) -> str:
    return f"the sum over {case.microbatches} microbatches of " if case.microbatches > 1 else ""


def _wgrad_in_words(case: Case, role: Role, formula: str) -> Iterator[str]:
    packed = case.single_grouped_weight
    shape = (case.num_gemms, *part(case, role)) if packed else part(case, role)
    asleep = [i for i in range(case.num_gemms) if frozen(case, i)]
    if asleep:
        whose = "every weight" if len(asleep) == case.num_gemms else f"the weight of expert {asleep[0]}"
        yield f"{role}: {whose} is frozen: .grad stays None, and an attached main_grad keeps its prefill"
    if len(asleep) == case.num_gemms:
        return
    owner = "the packed weight" if packed else f"each of the {case.num_gemms - len(asleep)} weights"
    if not case.fuse_wgrad_accumulation:
        yield f"{role}: .grad of {owner}, {shape} {LONG_NAMES[case.dtype]}, is {_over(case)}{formula}"
        kept = "; an attached main_grad keeps its prefill" if case.main_grad == "attached" else ""
        yield f"{role} of an expert without tokens: .grad is exactly 0{kept}"
        return
    attached = case.grad_added_to_main_grad == "attached"
    flag = "grad_added_to_main_grad is True; " if attached else ""
    content = "is zero" if case.zero_out_wgrad else "is nobody's business"
    dummy = f".grad is None or a dummy of the parameter's shape and dtype, whose content {content}"
    yield (
        f"{role}: main_grad of {owner}, {shape} {LONG_NAMES[case.main_grad_dtype]}, is "
        f"{_main_grad_in_words(case, formula)}; "
        f"{flag}{dummy if attached else '.grad stays None'}"
    )
    overwritten = [i for i in range(case.num_gemms) if overwriting(case, i)]
    if overwritten:
        whose = "every weight" if len(overwritten) == case.num_gemms else f"those of experts {overwritten}"
        yield (
            f"overwrite_main_grad of {whose}: main_grad is the last microbatch's wgrad alone, its prefill gone; "
            f"exactly 0 where that brought the expert no token"
        )
    if not overwriting_at_all(case):
        yield f"{role} of an expert without tokens: main_grad keeps its prefill, bit for bit"


def _main_grad_in_words(case: Case, formula: str) -> str:
    if case.is_first_microbatch == "first":
        return f"{_over(case)}{formula}: the first microbatch overwrites the prefill"
    return f"its prefill plus {_over(case)}{formula}"
