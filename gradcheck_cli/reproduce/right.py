"""What is right after each microbatch, in fp64, and how is what was found compared with it? In a few lines."""

from __future__ import annotations

from gradcheck_cli.records.due import is_first, overwriting_at_all
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce import driving
from gradcheck_cli.reproduce.driving import OVERWRITTEN, indented
from gradcheck_cli.reproduce.making import Making
from gradcheck_cli.reproduce.wanted import Wanted

PREFILL = {"integers": 3.0, "large integers": 257.0, "scaled integers": 3.0, "normal": 3.0}  # 257 is none of bf16's
ROUNDINGS = {"bf16": 2.0**-5, "fp16": 2.0**-8, "fp32": 2.0**-8}  # of normal data, TF32 included: eight of the dtype's


def expected(wanted: Wanted) -> list[str]:
    """What is right before the first microbatch."""
    role = wanted.failure.role
    if not wanted.compares:
        return []
    if role == "wgrad":
        lines = [f"expected = torch.full((G, N, K), {start(wanted)}, device=DEVICE, dtype=torch.float64)"]
    elif role == "bgrad":
        lines = ["expected = torch.zeros(G, N, device=DEVICE, dtype=torch.float64)"]
    else:
        return ["wrong = []"]
    return [*lines, *(["whole = expected.clone()"] if wanted.rounds_in_steps else [])]


def start(wanted: Wanted) -> str:
    """What a weight's buffer holds before the first microbatch."""
    return f"{prefill(wanted)}{wanted.power('x', 'g')}" if wanted.into_main_grad else "0.0"


def prefill(wanted: Wanted) -> float:
    """What every element of a main_grad holds before."""
    return PREFILL["integers" if wanted.case.main_grad_dtype == "bf16" else wanted.data]


def compared(wanted: Wanted, making: Making) -> list[str]:
    """What is right after a microbatch, in fp64."""
    if not wanted.compares:
        return []
    if wanted.failure.role in ("wgrad", "bgrad"):
        return [*_overwritten(wanted), *_summed(wanted, making)]
    return _row_by_row(wanted)


def _overwritten(wanted: Wanted) -> list[str]:
    """What is there before counts no more."""
    case = wanted.case
    if not wanted.into_main_grad:
        return []
    both = ("expected", "whole") if wanted.rounds_in_steps else ("expected",)
    lines = []
    if case.overwrite_main_grad != "none":
        lines.append(" = ".join(f"{one}{OVERWRITTEN[case.overwrite_main_grad]}" for one in both) + " = 0.0")
    if is_first(case, 0) is not None:
        lines.append("if k == 0: " + " = ".join(f"{one}[:]" for one in both) + " = 0.0")
    return lines


def _summed(wanted: Wanted, making: Making) -> list[str]:
    """A microbatch's share of a parameter's gradient, and beside it as it is with another order of the roundings."""
    whole = own = "gi.T @ xi" if wanted.failure.role == "wgrad" else "gi.sum(0)"
    if wanted.rounds and (making.hook or not wanted.into_main_grad):
        own = f"({own}).to(DTYPE)"
    rounds = wanted.rounds and wanted.held_in != "torch.float32"
    step = f"expected[i] = (expected[i] + {own}).to({wanted.held_in})" if rounds else f"expected[i] += {own}"
    beside = [f"    whole[i] += {whole}"]
    if rounds and wanted.into_main_grad:
        beside = [f"    whole[i] = (whole[i] + ({own}).to({wanted.held_in})).to({wanted.held_in})"]
    rows = driving.own(wanted.case)
    parts = f"zip(x.detach().double(){rows}.split(splits), g.double(){rows}.split(splits))"
    return [f"for i, (xi, gi) in enumerate({parts}):", f"    {step}", *(beside if wanted.rounds_in_steps else [])]


def _row_by_row(wanted: Wanted) -> list[str]:
    """The output or x.grad of a microbatch, and what it must be."""
    case, role, own = wanted.case, wanted.failure.role, driving.own(wanted.case)
    found, rows, factor = (f"y.detach(){own}", "x.detach()", "w.double()[i].T")
    if role == "dgrad":
        found, rows, factor = ("x.grad", "g", "w.double()[i]")
        found = f"None if x.grad is None else x.grad{own}" if own else found
    bias = f" + 1.0{wanted.power('x', 'w')}" if role == "fprop" and case.bias else ""
    whole = f"torch.cat([r @ {factor} for i, r in enumerate({rows}.double(){own}.split(splits))])"
    return [
        *_product(wanted, whole, bias),
        f"found = {found}",
        *(["expected = torch.where(found == twice, twice, expected)"] if wanted.rounds and bias else []),
        f"if found is None or {differs(wanted, 'found', 'expected')}:",
        "    wrong.append(splits)",
        *indented(beside(wanted, "found", "expected", "microbatch {splits}")),
        "assert expected.any() or not sum(splits)  # or nothing could be seen",
    ]


def _product(wanted: Wanted, whole: str, bias: str) -> list[str]:
    """What is right, in fp64; a product may round before its bias is added as well, as in `compute/contents.py`."""
    if not wanted.rounds:
        return [f"expected = {whole}{bias}"]
    if not bias:
        return [f"expected = {whole}.to(DTYPE).double()"]
    return [
        f"product = {whole}",
        f"expected = (product{bias}).to(DTYPE).double()",
        f"twice = (product.to(DTYPE){bias}).double()  # as right: rounded before the bias is added as well",
    ]


def differs(wanted: Wanted, found: str, expected: str, otherwise: str = "") -> str:
    """Where something else is found than what is right, or in another order of its roundings as right."""
    if wanted.data == "normal":
        dtype = "bf16" if wanted.held_in == "torch.bfloat16" else wanted.case.dtype
        return f"({found} - {expected}).norm() > {ROUNDINGS[dtype]} * {expected}.norm()"
    wrong = f"not torch.equal({found}.double(){'.round()' if wanted.nearly else ''}, {expected})"
    if otherwise:
        wrong = f"not ((({found} == {expected}) | ({found} == {otherwise})).all())"
    return f"{found}.dtype != {wanted.held_in} or {wrong}" if wanted.looks_at_shape else wrong


def beside(wanted: Wanted, found: str, expected: str, where: str) -> list[str]:
    """What was found beside what was expected, where they differ most; or why there is no such element."""
    if not (wanted.failure.outcome.wrong_value or wanted.failure.outcome is Outcome.NONFINITE):
        return [f'print(f"{where}: expected", state({expected}), "found", state({found}))']
    values = f"expected {{{expected}.flatten()[at]:.8g}}, found {{{found}.flatten()[at]:.8g}}"
    return [f"at = ({found} - {expected}).abs().argmax()", f'print(f"{where}, where they differ most: {values}")']


def told_from_none(wanted: Wanted) -> str:
    """Where a gradient that is right differs from none; one that was overwritten is none where it is 0."""
    overwritten = wanted.into_main_grad and overwriting_at_all(wanted.case)
    moved = f"(expected != {start(wanted)})"
    return f"({moved} & (expected != 0))" if overwritten else moved


def at_once(wanted: Wanted) -> str:
    """What a sum of microbatches may as rightly be: rounded at its end alone, as in `compute/contents.py`; else ""."""
    if not wanted.rounds_in_steps:
        return ""
    return "whole[i]" if wanted.into_main_grad else "whole[i].to(DTYPE).double()"
