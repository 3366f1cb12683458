"""Which few lines show that a gradient is missing, or is no number? A look into its buffer: no reference is needed."""

from __future__ import annotations

import re
import textwrap

from gradcheck_cli.records.due import frozen, is_first
from gradcheck_cli.records.roles import is_chain
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce import driving
from gradcheck_cli.reproduce.driving import indented
from gradcheck_cli.reproduce.making import DTYPES, Making
from gradcheck_cli.reproduce.wanted import FAULT, Wanted

_PREFILL = "3.0"
# What has a row for each token, by its role; of the last microbatch.
_BY_TOKEN = {"fprop": "y", "dgrad": "x.grad", "pgrad": "probs.grad"}
_LONGEST = 100


def lines(wanted: Wanted, making: Making) -> list[str]:
    """What stands below the variables and the imports."""
    build = [folded for line in making.build for folded in _folded(_named(wanted, line))]
    steps = _steps(wanted, making)
    off = [driving.OFF] if any("off(" in line for line in steps) else []
    alone = driving.frozen(wanted.case)
    return ["torch.manual_seed(0)", *off, *build, *_attached(wanted), *alone, *steps, "", *_told(wanted)]


def _named(wanted: Wanted, line: str) -> str:
    """A line of a making with what its names stand for: there are too few lines for names."""
    case = wanted.case
    values = {
        "G": str(case.num_gemms),
        "K": str(case.in_features),
        "N": str(case.out_features),
        "DTYPE": DTYPES[case.dtype],
        "DEVICE": f'"{wanted.device}"',
    }
    return re.sub(r"\b(G|K|N|DTYPE|DEVICE)\b", lambda found: values[found[0]], line)


def _folded(line: str) -> list[str]:
    """A long call, its arguments on lines of their own."""
    head, _, arguments = line.partition("(")
    if len(line) <= _LONGEST or not line.endswith(")"):
        return [line]
    parts = textwrap.wrap(f"{arguments[:-1]},", _LONGEST, break_long_words=False, break_on_hyphens=False)
    within = " " * (len(line) - len(line.lstrip()))
    return [f"{head}(", *(f"{within}    {part}" for part in parts), f"{within})"]


def _attached(wanted: Wanted) -> list[str]:
    if not wanted.attaches_main_grad:
        return []
    return driving.attached(wanted.case, _PREFILL, f'"{wanted.device}"')


def _steps(wanted: Wanted, making: Making) -> list[str]:
    """Forward and backward, once for each microbatch."""
    case = wanted.case
    splits = [list(case.splits(k)) for k in range(case.microbatches)]
    once = len(splits) == 1 and is_first(case, 0) is None
    tokens, given = (str(sum(splits[0])), str(splits[0])) if once else ("sum(splits)", "splits")

    def named(line: str) -> str:
        return re.sub(r"\bsplits\b", given, _named(wanted, line.replace("sum(splits)", tokens)))

    drawn = f'torch.randn({tokens}, {case.in_features}, dtype={DTYPES[case.dtype]}, device="{wanted.device}")'
    back = driving.backward(
        case, driving.grad_output_of(case, "torch.randn_like(y)", padded=True), making.backward_dw, []
    )
    each, between = map(named, making.each), map(named, making.between)
    step = [f"x = {driving.x_of(case, drawn)}", *each, f"y = {named(making.call)}", *between, *back]
    return step if once else [*driving.every(case, str(splits)), *indented(step)]


def _told(wanted: Wanted) -> list[str]:
    """Where the gradients are, the fault, and the exit code."""
    case, role = wanted.case, wanted.failure.role
    said = [_arrived("input.grad", "x.grad"), *([_arrived("probs.grad", "probs.grad")] if is_chain(case) else [])]
    if role in _BY_TOKEN:
        return [*said, f"wrong = {_lost(wanted, _BY_TOKEN[role])}", *_ending(wanted, ""), "sys.exit(bool(wrong))"]
    seen = _in_main_grad if wanted.into_main_grad else _in_grad
    return [*said, *seen(wanted), *_ending(wanted, wanted.parameters), "sys.exit(bool(wrong))"]


def _arrived(name: str, tensor: str) -> str:
    return f'print("{name}:", "None" if {tensor} is None else "arrived")'


def _lost(wanted: Wanted, tensor: str) -> str:
    """Whether a tensor is not what it must be: there, or all numbers as well."""
    if wanted.failure.outcome is Outcome.NONFINITE:
        return f"{tensor} is None or not {tensor}.isfinite().all()"
    return f"{tensor} is None"


def _in_grad(wanted: Wanted) -> list[str]:
    """Which parameters have no .grad, or one that is no number."""
    asked = "p.requires_grad and " if wanted.parameters == "weights" and wanted.case.frozen_weights != "none" else ""
    lost = _lost(wanted, "p.grad")
    return [
        f"for i, p in enumerate({wanted.parameters}):",
        f'    print(f"{wanted.parameter} {{i}}: .grad", "None" if p.grad is None else "arrived")',
        f"wrong = [i for i, p in enumerate({wanted.parameters}) if {asked}{f'({lost})' if ' or ' in lost else lost}]",
    ]


def _in_main_grad(wanted: Wanted) -> list[str]:
    """Which experts have rows, and still their prefill; one without tokens rightly keeps it."""
    case = wanted.case
    reached = [i for i in range(case.num_gemms) if any(case.splits(k)[i] for k in range(case.microbatches))]
    busy = [i for i in reached if not frozen(case, i)]
    whose = wanted.parameters
    each = f"{whose}[0].main_grad" if case.single_grouped_weight else f"[p.main_grad for p in {whose}]"
    only = "" if len(busy) == case.num_gemms else f"i in {busy} and "
    nonfinite = wanted.failure.outcome is Outcome.NONFINITE
    lost = "not held.isfinite().all()" if nonfinite else f"(held == {_PREFILL}).all()"
    return [
        f"for i, p in enumerate({whose}):",
        f'    main_grad = "still {_PREFILL}" if (p.main_grad == {_PREFILL}).all() else "written"',
        f'    print(f"{wanted.parameter} {{i}}:", "no .grad," if p.grad is None else ".grad,", "main_grad", main_grad)',
        f"wrong = [i for i, held in enumerate({each}) if {only}{lost}]",
    ]


def _ending(wanted: Wanted, of: str) -> list[str]:
    outcome, words = wanted.failure.outcome, "is missing"
    if outcome is Outcome.NONFINITE:
        words = "is not finite"
    elif outcome is Outcome.MISPLACED:
        words = "is not where it must be"
    said = f"{wanted.failure.role} {words}"
    listed = f": {'experts' if wanted.into_main_grad else of} {{wrong}}" if of else ""
    return [f'print(f"{FAULT} {said}{listed}" if wrong else "ok")']
