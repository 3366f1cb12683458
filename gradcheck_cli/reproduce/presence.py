"""Which few lines show that a gradient is missing? Forward, backward, and a look into its buffer: no reference."""

from __future__ import annotations

import re
import textwrap

from gradcheck_cli.records.due import frozen, is_first
from gradcheck_cli.reproduce import driving
from gradcheck_cli.reproduce.driving import indented
from gradcheck_cli.reproduce.recipes import DTYPES, Recipe
from gradcheck_cli.reproduce.wanted import FAULT, Wanted

_PREFILL = "3.0"
_LONGEST = 100


def lines(wanted: Wanted, recipe: Recipe) -> list[str]:
    """What stands below the variables and the imports."""
    build = [folded for line in recipe.build for folded in _folded(_named(wanted, line))]
    steps = _steps(wanted, recipe)
    off = [driving.OFF] if any("off(" in line for line in steps) else []
    alone = driving.frozen(wanted.case)
    return ["torch.manual_seed(0)", *off, *build, *_attached(wanted), *alone, *steps, "", *_told(wanted)]


def _named(wanted: Wanted, line: str) -> str:
    """A line of a recipe with what its names stand for: there are too few lines for names."""
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
    return [f"{head}(", *(f"    {part}" for part in parts), ")"]


def _attached(wanted: Wanted) -> list[str]:
    if not wanted.case.fuse_wgrad_accumulation:
        return []
    return driving.attached(wanted.case, _PREFILL, f'"{wanted.device}"')


def _steps(wanted: Wanted, recipe: Recipe) -> list[str]:
    """Forward and backward, once for each microbatch."""
    case = wanted.case
    splits = [list(case.splits(k)) for k in range(case.microbatches)]
    once = len(splits) == 1 and is_first(case, 0) is None
    tokens, given = (str(sum(splits[0])), str(splits[0])) if once else ("sum(splits)", "splits")
    call = re.sub(r"\bsplits\b", given, _named(wanted, recipe.call))
    drawn = f'torch.randn({tokens}, {case.in_features}, dtype={DTYPES[case.dtype]}, device="{wanted.device}")'
    back = driving.backward(
        case, driving.grad_output_of(case, "torch.randn_like(y)", padded=True), recipe.backward_dw, []
    )
    step = [f"x = {driving.x_of(case, drawn)}", f"y = {call}", *back]
    return step if once else [*driving.every(case, str(splits)), *indented(step)]


def _told(wanted: Wanted) -> list[str]:
    """Where the gradients are, the fault, and the exit code."""
    said = ['print("input.grad:", "None" if x.grad is None else "arrived")']
    role = wanted.failure.role
    if role == "dgrad":
        return [*said, "missing = x.grad is None", *_ending(role, ""), "sys.exit(missing)"]
    if role == "wgrad" and wanted.case.fuse_wgrad_accumulation:
        return [*said, *_untouched(wanted), *_ending(role, "experts"), "sys.exit(bool(missing))"]
    name, parameters = ("weight", "weights") if role == "wgrad" else ("bias", "biases")
    asked = "p.requires_grad and " if role == "wgrad" and wanted.case.frozen_weights != "none" else ""
    return [
        *said,
        f"for i, p in enumerate({parameters}):",
        f'    print(f"{name} {{i}}: .grad", "None" if p.grad is None else "arrived")',
        f"missing = [i for i, p in enumerate({parameters}) if {asked}p.grad is None]",
        *_ending(role, parameters),
        "sys.exit(bool(missing))",
    ]


def _untouched(wanted: Wanted) -> list[str]:
    """Which experts have rows, and still their prefill; one without tokens rightly keeps it."""
    case = wanted.case
    reached = [i for i in range(case.num_gemms) if any(case.splits(k)[i] for k in range(case.microbatches))]
    busy = [i for i in reached if not frozen(case, i)]
    packed = case.single_grouped_weight
    each = "weights[0].main_grad" if packed else "[p.main_grad for p in weights]"
    only = "" if len(busy) == case.num_gemms else f"i in {busy} and "
    return [
        "for i, p in enumerate(weights):",
        f'    main_grad = "still {_PREFILL}" if (p.main_grad == {_PREFILL}).all() else "written"',
        '    print(f"weight {i}: .grad", "None" if p.grad is None else "set", "and main_grad", main_grad)',
        f"missing = [i for i, held in enumerate({each}) if {only}(held == {_PREFILL}).all()]",
    ]


def _ending(role: str, of: str) -> list[str]:
    listed = f': {of} {{missing}}"' if of else '"'
    return [f'print(f"{FAULT} {role} is missing{listed} if missing else "ok")']
