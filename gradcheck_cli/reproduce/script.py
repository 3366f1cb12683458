"""Which few lines show a failure without gradcheck? Their text, for one kind of data."""

from __future__ import annotations

from gradcheck_cli.records.case import DEFAULTS
from gradcheck_cli.records.roles import is_chain, roles_of
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce import driving, flags, presence, right
from gradcheck_cli.reproduce.driving import indented
from gradcheck_cli.reproduce.making import DTYPES, Making
from gradcheck_cli.reproduce.wanted import FAULT, LARGE, MOST_LINES, SMALL, Unscriptable, Wanted

STATE = 'def state(t): return "None" if t is None else f"{tuple(t.shape)} {t.dtype}, largest {t.abs().max():.4g}"'

# Axes -> what they ask for.
UNWRITTEN = {
    ("stream", "cuda_graph"): "streams and graphs",
    ("retain_graph",): "graphs that are retained",
    ("pipelined",): "forwards that wait for one another",
    ("optimizer", "moved"): "the steps of an optimizer, .to() and load_state_dict()",
}

HEADER = 4  # lines at most, which stand above


def body(wanted: Wanted, making: Making) -> list[str]:
    """Everything below the header, as lines; raises Unscriptable."""
    failure = wanted.failure
    if failure.role == "case" and not failure.outcome.no_end:
        raise Unscriptable(f"{failure} is about the whole case, and not about one gradient")
    if failure.role not in ("case", *roles_of(wanted.case)):
        raise Unscriptable(f"{failure}: {wanted.case} has no such gradient")
    if is_chain(wanted.case) and wanted.compares and wanted.data != "presence":
        raise Unscriptable(
            f"{failure}: of what has gone through an activation a few lines have neither value nor bound"
        )
    if wanted.case.recipe != "none" and wanted.case.provider == "torch":
        raise Unscriptable(f"{failure}: what quantises here is gradcheck's own, and no few lines")
    _scriptable(wanted)
    if wanted.case.tied_weights and wanted.compares and failure.role == "dgrad" and wanted.data != "presence":
        raise Unscriptable(f"{failure}: with tied weights x.grad of the first of two is there after the second alone")
    if wanted.looks_at_attributes:
        flags.wrong(wanted)  # raises where nothing can be looked at
    variables = [f'os.environ["{name}"] = "{value}"' for name, value in making.variables.items()]
    system = [] if failure.outcome.no_end else ["import sys"]
    asked = wanted.case.deterministic and wanted.case.provider != "te"
    determined = ["torch.use_deterministic_algorithms(True)"] if asked else []
    os_first = ["import os", *variables] if variables else []
    head = [*os_first, *system, "import torch", *making.imports, *determined, ""]
    if wanted.data == "presence":
        return [*head, *presence.lines(wanted, making)]
    lines = [*head, *_lines(wanted, making, tells_all=True)]
    if len(lines) > MOST_LINES - HEADER:
        return [*head, *_lines(wanted, making, tells_all=False)]
    return lines


def _scriptable(wanted: Wanted) -> None:
    """Unscriptable where it takes luck, or what no script does yet."""
    if wanted.failure.outcome is Outcome.NONDETERMINISTIC:
        again = f"`gradcheck run --case '{wanted.case}'` counts again"
        raise Unscriptable(f"{wanted.failure}: it takes luck, and a script must fail each time; {again}")
    for axes, what in UNWRITTEN.items():
        if any(getattr(wanted.case, axis) != DEFAULTS[axis] for axis in axes):
            raise Unscriptable(f"{wanted.failure}: {what} are not written into a few lines yet")


def _lines(wanted: Wanted, making: Making, *, tells_all: bool) -> list[str]:
    """What stands below the imports; `tells_all` what became of every gradient, and not only of the wrong one."""
    case = wanted.case
    rest = [
        *making.build,
        *_loaded(wanted, making),
        *_attached(wanted),
        *driving.frozen(case),
        *right.expected(wanted),
        *driving.every(case, "SPLITS"),
        *indented([*_microbatch(wanted, making), *right.compared(wanted, making)]),
        *(_states(wanted) if tells_all else []),
        *_told(wanted),
    ]
    shape = f"{case.num_gemms}, {case.in_features}, {case.out_features}"
    return [
        f'G, K, N, DTYPE, DEVICE = {shape}, {DTYPES[case.dtype]}, "{wanted.device}"',
        f"SPLITS = {[list(case.splits(k)) for k in range(case.microbatches)]}  # tokens of each expert, by microbatch",
        "torch.manual_seed(0)",
        _draw(wanted),
        *([STATE] if any("state(" in line for line in rest) else []),
        *([driving.OFF] if any("off(" in line for line in rest) else []),
        *rest,
    ]


def _draw(wanted: Wanted) -> str:
    if wanted.data == "normal":
        return "def draw(*shape): return torch.randn(*shape, device=DEVICE).to(DTYPE)"
    largest = LARGE[wanted.case.dtype] if wanted.data == "large integers" else SMALL
    return f"def draw(*shape): return torch.randint(-{largest}, {largest + 1}, shape, device=DEVICE).to(DTYPE)"


def _loaded(wanted: Wanted, making: Making) -> list[str]:
    """Weights and biases, where the result depends on them; to their own gradients they are of no account."""
    if not wanted.compares or wanted.failure.role not in ("fprop", "dgrad"):
        return []
    lines = [f"w = draw(G, N, K){wanted.power('w')}", "with torch.no_grad():", *indented(making.load)]
    filled = f"    for b in biases: {making.bias}.fill_(1.0{wanted.power('x', 'w')})"
    return lines + ([filled] if wanted.case.bias else [])


def _attached(wanted: Wanted) -> list[str]:
    if not wanted.attaches_main_grad:
        return []
    value = f"{right.prefill(wanted)}{wanted.power('x', 'g')}"
    lines = driving.attached(wanted.case, value, "DEVICE")
    return lines + (flags.kept(wanted) if wanted.looks_at_attributes else [])


def _microbatch(wanted: Wanted, making: Making) -> list[str]:
    """Forward, backward and backward_dw; on a device an exception is there once it is waited for."""
    case, power = wanted.case, wanted.power("x")
    x, g = "draw(sum(splits), K)", f"draw(sum(splits), {'K' if is_chain(case) else 'N'})"
    if power:
        x, g = f"({x}{power})", f"({g}{wanted.power('g')})"
    before, after = flags.around(wanted)
    waited = ["torch.cuda.synchronize()"] if wanted.failure.outcome.no_end and wanted.device == "cuda" else []
    lines = [*before, f"x = {driving.x_of(case, x)}"]
    lines += making.each
    expanded = case.grad_output == "expanded"
    if not expanded:
        lines.append(f"g = {driving.grad_output_of(case, g, padded=False)}")
    ones = ["g = torch.ones_like(y)"] if expanded and wanted.compares else []
    back = driving.backward(case, "g", making.backward_dw, after)
    return [*lines, f"y = {making.call}", *waited, *making.between, *back, *ones, *waited]


def _told(wanted: Wanted) -> list[str]:
    """What is wrong, the fault, and the exit code."""
    role, said, of = wanted.failure.role, f"{wanted.failure.role} is not what it must be", "experts"
    if wanted.failure.outcome.no_end:
        return ['print("ok: it has come to its end")']
    lines = []
    if wanted.looks_at_attributes:
        said, of = flags.wrong(wanted).words, "in" if role == "dgrad" else wanted.parameters
        lines += flags.looked_at(wanted)
    elif role in ("wgrad", "bgrad"):
        differs = right.differs(wanted, "found[i]", "expected[i]", right.at_once(wanted))
        asked = driving.awake(wanted.case) if role == "wgrad" else "range(G)"
        lines += [_found(wanted), f"wrong = [i for i in {asked} if found[i] is None or {differs}]"]
        lines += ["for i in wrong[:1]:", *indented(right.beside(wanted, "found[i]", "expected[i]", "expert {i}"))]
        if any(sum(wanted.case.splits(k)) for k in range(wanted.case.microbatches)):
            lines.append(f"assert {right.told_from_none(wanted)}.any()  # or nothing could be seen")
    else:
        of = "microbatches of"
    ending = f'print("{FAULT} {said}: {of}" if wrong else "ok", wrong or "")'
    return [*lines, ending, "sys.exit(bool(wrong))"]


def _states(wanted: Wanted) -> list[str]:
    """What became of the gradients, whichever is wrong."""
    if wanted.failure.outcome.no_end or (wanted.compares and wanted.failure.role in ("fprop", "dgrad")):
        return []
    lines = ['print("input.grad:", state(x.grad))'] if sum(wanted.case.splits(wanted.case.microbatches - 1)) else []
    main_grad = ""
    if wanted.attaches_main_grad and wanted.parameters != "biases":
        flag = ', "added:", p.grad_added_to_main_grad' if wanted.case.grad_added_to_main_grad == "attached" else ""
        main_grad = f', "main_grad", state(p.main_grad){flag}'
    each = f'print(f"{wanted.parameter} {{i}}: .grad", state(p.grad){main_grad})'
    return [*lines, f"for i, p in enumerate({wanted.parameters}):", f"    {each}"]


def _found(wanted: Wanted) -> str:
    case, parameters, packed = wanted.case, "weights", wanted.case.single_grouped_weight
    if wanted.failure.role == "bgrad":
        parameters, packed = "biases", case.single_grouped_bias
    buffer = "main_grad" if wanted.into_main_grad else "grad"
    if packed:
        return f"found = [None] * G if {parameters}[0].{buffer} is None else list({parameters}[0].{buffer})"
    return f"found = [p.{buffer} for p in {parameters}]"
