"""Which faults must an oracle see? Named alterations of right gradients, each with the bug that it stands for."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.chances import CHANCES
from gradcheck_cli.records.endings import ENDINGS
from gradcheck_cli.records.observation import FILLS, ROLES, Fill, Role
from gradcheck_cli.records.roles import OF_A_CHAIN, WEIGHTS, is_chain
from gradcheck_cli.records.verdict import Outcome

# value: in a result; delivery: in where it is put and what is said of it; early: in when; step: in what an optimizer
# makes of it; unseen: in what the oracle is shown.
Kind = Literal["value", "delivery", "early", "step", "unseen"]

MODES = ("fast", "all", "none")
LADDER = (1, 2, 3, 4, 8, 32, 256)

WRONG = (Outcome.INEXACT, Outcome.INACCURATE)
# What lacks all of a gradient may leave a main_grad as it was.
GONE = (*WRONG, Outcome.MISSING)
POISONED = (*WRONG, Outcome.NONFINITE)
# What too few exponents lose may be all of it.
LOST = (*GONE, Outcome.NONFINITE)
NONFINITE = (Outcome.NONFINITE,)
MISSING = (Outcome.MISSING,)
MISPLACED = (Outcome.MISPLACED,)
PROTOCOL = (Outcome.PROTOCOL,)
UNEXPECTED = (Outcome.UNEXPECTED,)

W = WEIGHTS
PRODUCTS: tuple[Role, ...] = ("fprop", "dgrad", *W)
ROWS: tuple[Role, ...] = ("fprop", "dgrad")
PARAMETERS: tuple[Role, ...] = ("wgrad", "bgrad", "wgrad_fc2")
OF_A_LAYER: tuple[Role, ...] = ("wgrad", "bgrad")  # no chain is frozen, delayed or padded

# Where a difference of any size is seen. On random data a bound may be wider than what these faults change.
INTEGERS: tuple[Fill, ...] = ("exact", "range")


class Fault(Record, frozen=True, kw_only=True):
    """One way to be wrong; applied to one role it is a mutant, and an api of the provider `faults`."""

    name: str
    kind: Kind = "value"
    roles: tuple[Role, ...]
    cites: str  # a public bug as CONTRIBUTING.md lists them, or a false pass by its number
    deserves: tuple[Outcome, ...]  # any of these is a kill
    fast: tuple[Role, ...] = ()  # the roles with which it is in the default subset
    fills: tuple[Fill, ...] = FILLS  # in which it must be seen: a tolerance hides what rounds like a right gradient
    hidden: tuple[Role, ...] = ()  # where a chain is not asked to show it: its own roundings may be as large
    roundings: int = 0  # of a ladder's step: its relative error in units of the dtype's roundoff
    summary: str

    @property
    def required(self) -> bool:
        """Whether a pass needs it to be seen; of a ladder it is told from which step on it is, as a measure."""
        return not self.roundings


class Mutant(NamedTuple):
    """A fault in one role."""

    fault: Fault
    role: Role

    @property
    def name(self) -> str:
        """`wgrad_doubled`."""
        return f"{self.role}_{self.fault.name}"


def value(  # noqa: PLR0913  a row of the table
    name: str,
    roles: tuple[Role, ...],
    cites: str,
    summary: str,
    deserves: tuple[Outcome, ...] = WRONG,
    *,
    fast: tuple[Role, ...] = (),
    fills: tuple[Fill, ...] = FILLS,
    hidden: tuple[Role, ...] = (),
) -> Fault:
    """A fault in a result."""
    return Fault(
        name=name, roles=roles, cites=cites, summary=summary, deserves=deserves, fast=fast, fills=fills, hidden=hidden
    )


def delivery(  # noqa: PLR0913  a row of the table
    name: str,
    roles: tuple[Role, ...],
    cites: str,
    summary: str,
    deserves: tuple[Outcome, ...],
    *,
    fast: tuple[Role, ...] = (),
    fills: tuple[Fill, ...] = FILLS,
    kind: Kind = "delivery",
) -> Fault:
    """A fault in where a gradient is put, or in what an optimizer makes of it."""
    row = value(name, roles, cites, summary, deserves, fast=fast, fills=fills)
    return msgspec.structs.replace(row, kind=kind)


def ladder(roundings: int) -> Fault:
    """A gradient that is too large by so many roundings of its dtype."""
    return Fault(
        name=f"epsilon_{roundings}",
        roles=ROLES,
        cites="false pass 9",
        deserves=WRONG,
        roundings=roundings,
        summary=f"times 1 + {roundings} u, the unit roundoff of the dtype",
    )


FAULTS: tuple[Fault, ...] = (
    value("zeroed", ROLES, "F8", "all zero", GONE, fast=("bgrad",)),
    value("doubled", ROLES, "J3", "twice as large", fast=(*W, "pgrad")),
    value("halved", ROLES, "J5", "half as large: divided by a world size too many"),
    value("scaled_down", ROLES, "F1", "times 2^-7: exponents read in another format"),
    value("one_percent", ROLES, "F3", "times 1.01 in one expert", fast=W, hidden=ROLES),
    value("one_ulp", ROLES, "false pass 17", "one element off by one unit in the last place", fills=("exact",)),
    *(ladder(roundings) for roundings in LADDER),
    value("token_dropped", ROLES, "G5", "without the last token of an expert", GONE, fast=W, hidden=W),
    value("tail_missing", PRODUCTS, "G4", "without the last eighth of the contraction", GONE, fast=("fprop",)),
    value("experts_swapped", ROLES, "K4", "two experts in each other's place", GONE),
    value("other_weight", ROWS, "F4", "computed with another expert's weight", fast=("dgrad",)),
    value("stale_weight", ROWS, "F7", "computed with the weight before an optimizer's step", fast=ROWS, hidden=ROWS),
    value("rows_rolled", (*PRODUCTS, "pgrad"), "false pass 14", "every row one further", fast=("dgrad",)),
    value("row_repeated", PRODUCTS, "false pass 14", "the last row holds the one before it"),
    value("rows_into_first", ROWS, "I5", "every row stored into the first one"),
    value("block_transposed", W, "G1", "a square block transposed"),
    value("memory_transposed", W, "I3", "its memory read in the order of the transposed shape"),
    value("tokens_misaligned", W, "false pass 14", "grad_output one token further than x", fast=W),
    value("garbage_in_empty", PARAMETERS, "C1", "garbage in an expert without tokens", fast=W, fills=INTEGERS),
    value("nan_in_empty", PARAMETERS, "C8", "NaN in an expert without tokens", NONFINITE),
    value("nan", ROLES, "C3", "one element NaN", NONFINITE, fast=("dgrad",)),
    value("inf", ROLES, "C4", "one element infinite", NONFINITE),
    value("uninitialised_71", ROLES, "C2", "the last quarter never written: bytes 0x71", POISONED),
    value("uninitialised_ff", ROLES, "C9", "the last quarter never written: bytes 0xFF", POISONED),
    value("stale", ROLES, "B5", "the result of an earlier microbatch", GONE),
    value("bias_missing", ("fprop",), "H4", "without its bias", fast=("fprop",)),
    value("bias_twice", ("fprop",), "H4", "with its bias added twice"),
    value("padding_row", ("bgrad",), "H6", "sums one row more than the expert has"),
    value("tail_read", OF_A_LAYER, "C5", "sums the rows past sum(m_splits) as well", LOST),
    value("summed_in_bf16", ROLES, "B7", "partial sums rounded to bf16", fast=W, fills=INTEGERS),
    value("operands_in_bf16", PRODUCTS, "F11", "operands rounded to bf16 first", fills=("range",)),
    value("operands_in_fp16", PRODUCTS, "F1", "operands with the exponents of fp16", LOST, fills=INTEGERS),
    value("result_in_fp16", ROLES, "F1", "with the exponents of fp16", LOST, fast=W, fills=INTEGERS),
    value("flushed", ROLES, "F1", "subnormal numbers flushed to 0", GONE, fills=INTEGERS),
    delivery("missing", ("dgrad", "pgrad", *PARAMETERS), "A1", "its buffer is None", MISSING, fast=("pgrad", *W)),
    delivery("missing_but_first", PARAMETERS, "A8", "its buffer is None for every expert but the first", MISSING),
    delivery("untouched", W, "A1", "main_grad holds its prefill", MISSING, fast=W),
    delivery("untouched_flag_set", W, "A3", "main_grad holds its prefill, the flag says otherwise", MISSING),
    delivery("in_grad", W, "E8", "in .grad instead of main_grad", MISPLACED),
    delivery("in_main_grad", W, "B9", "in main_grad instead of .grad", MISPLACED),
    delivery("in_both", W, "B9", "in main_grad as well as in .grad", UNEXPECTED),
    delivery("flag_not_set", W, "E1", "added to main_grad, and the flag does not say so", PROTOCOL, fast=W),
    delivery("flag_set", W, "E8", "in .grad, and the flag says that main_grad has it", PROTOCOL),
    delivery("hook_lost", W, "E3", "autograd is handed None, so that no wrapper reduces", PROTOCOL, fast=W),
    delivery("hook_twice", W, "E3", "autograd is handed two gradients by one backward", PROTOCOL),
    delivery("dummy_shape", W, "E2", "a dummy in .grad that has not the parameter's shape", PROTOCOL),
    delivery("main_grad_replaced", W, "E14", "another tensor is main_grad", (Outcome.PROTOCOL, Outcome.UNEXPECTED)),
    delivery("overwritten", W, "B4", "main_grad holds the last microbatch alone, without its prefill", WRONG),
    delivery("last_only", PARAMETERS, "B4", "earlier microbatches lost", GONE, fast=W),
    delivery("first_only", PARAMETERS, "A9", "later microbatches lost", GONE),
    delivery("use_lost", PARAMETERS, "B10", "one of two uses of tied weights lost", GONE, fast=W),
    delivery("prefill_lost", W, "B8", "main_grad without what it held before", WRONG),
    delivery("doubled_before_each", PARAMETERS, "B3", "the buffer doubled before each microbatch", POISONED),
    delivery("accumulated_in_bf16", PARAMETERS, "B7", "rounded to bf16 after each microbatch", WRONG, fills=INTEGERS),
    delivery("not_overwritten", W, "B5", "added to a main_grad that it should have overwritten", WRONG),
    delivery("requires_grad_lost", W[:1], "A5", "asks for none once it was moved", MISSING, fast=W[:1]),
    delivery("frozen_given", ("dgrad", *OF_A_LAYER), "B9", "in .grad though it is frozen", UNEXPECTED),
    delivery("frozen_main_grad", W[:1], "B9", "in main_grad though it is frozen", UNEXPECTED),
    delivery("dummy_not_zero", W, "B6", "a dummy in .grad that is not zero, under zero_out_wgrad", PROTOCOL),
    delivery("dummy_unasked", W, "E2", "a dummy in .grad of a weight without grad_added_to_main_grad", PROTOCOL),
    Fault(
        name="early", kind="early", roles=W[:1], cites="E7", deserves=UNEXPECTED,
        summary="in main_grad before backward_dw was called",
    ),
    delivery("weight_not_moved", W[:1], "A9", "no optimizer moves it", PROTOCOL, fast=W[:1], kind="step"),
    delivery("frozen_weight_moved", W[:1], "B9", "moved though it is frozen", UNEXPECTED, fast=W[:1], kind="step"),
    delivery("other_dtype", PARAMETERS, "E13", "in a buffer of another dtype", PROTOCOL),
    delivery("other_shape", PARAMETERS, "false pass 3", "in a buffer of another shape", PROTOCOL),
    Fault(
        name="unobserved",
        kind="unseen",
        roles=ROLES,
        cites="false pass 6",
        deserves=(Outcome.UNTESTED,),
        fast=("fprop",),
        summary="nothing was seen of it",
    ),
)  # fmt: skip

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for fault in FAULTS
    for mutant in (Mutant(fault, role) for role in fault.roles)
    # Of a chain's own gradients there are random data alone.
    if mutant.role not in OF_A_CHAIN or ("normal" in fault.fills and mutant.role not in fault.hidden)
}


def fits(mutant: Mutant, *, chain: bool) -> bool:
    """Whether a single layer, or a chain of two, has such a gradient and must show the fault in it."""
    return mutant.role not in (mutant.fault.hidden if chain else OF_A_CHAIN)


# Whatever a layer can do wrong; what is not shown to the oracle is no layer's fault.
APIS: tuple[str, ...] = (
    *(name for name, one in MUTANTS.items() if one.fault.kind != "unseen" and fits(one, chain=False)),
    *ENDINGS,
    *CHANCES,
)


# What an optimizer makes of the weights, and what is lost when they are moved: no other case has a place for it.
STEPS = (
    *("fprop_stale_weight", "dgrad_stale_weight"),
    *("wgrad_weight_not_moved", "wgrad_frozen_weight_moved", "wgrad_requires_grad_lost"),
)


def needed(mode: str, case: Case) -> list[str]:
    """The names of the mutants that a mode of MODES asks for of a case."""
    if mode == "none":
        return []
    own = {name: one for name, one in MUTANTS.items() if fits(one, chain=is_chain(case))}
    plain = case.optimizer == case.moved == "none"
    return [n for n, one in own.items() if mode == "all" or (one.role in one.fault.fast and not (plain and n in STEPS))]
