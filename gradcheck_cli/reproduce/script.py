"""Which few lines show a failure without gradcheck? Their text, for one kind of data."""

from __future__ import annotations

from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce import presence
from gradcheck_cli.reproduce.recipes import DTYPES, Recipe
from gradcheck_cli.reproduce.wanted import FAULT, LARGE, SMALL, Unscriptable, Wanted, beyond

PREFILL = {"integers": 3.0, "large integers": 257.0, "scaled integers": 3.0, "normal": 3.0}  # 257 is none of bf16's
ROUNDINGS = {"bf16": 2.0**-5, "fp16": 2.0**-8, "fp32": 2.0**-8}  # of normal data, TF32 included: eight of the dtype's

# What makes a PROTOCOL or UNEXPECTED, by its diagnosis: an expression of i and p that is true where it is wrong.
WRONG = {
    "flag not set": ("p.grad_added_to_main_grad is not True", "grad_added_to_main_grad is not True"),
    "flag set": ("p.grad_added_to_main_grad", "grad_added_to_main_grad is True, and main_grad was not written"),
    "dummy": ("p.grad is not None and p.grad.shape != p.shape", "the dummy in .grad has another shape"),
    "main_grad replaced": ("p.main_grad is not given[i]", "main_grad is another tensor"),
    "main_grad written": ("not torch.equal(p.main_grad, before[i])", "main_grad was written"),
}


def body(wanted: Wanted, recipe: Recipe) -> list[str]:
    """Everything below the header, as lines; raises Unscriptable."""
    case, failure = wanted.case, wanted.failure
    if failure.role == "case" and not failure.outcome.no_end:
        raise Unscriptable(f"{failure} is about the whole case, and not about one gradient")
    if turned := beyond(case):
        raise Unscriptable(f"no script follows {', '.join(turned)} yet; `gradcheck run --case` shows it")
    if wanted.looks_at_attributes and failure.diagnosis not in WRONG:
        raise Unscriptable(f"{failure}: a few lines cannot look at that")
    variables = [f'os.environ["{name}"] = "{value}"' for name, value in recipe.variables.items()]
    system = [] if failure.outcome.no_end else ["import sys"]
    head = [*(["import os", *variables] if variables else []), *system, "import torch", *recipe.imports, ""]
    if wanted.data == "presence":
        return [*head, *presence.lines(wanted, recipe)]
    shape = f"{case.num_gemms}, {case.in_features}, {case.out_features}"
    rest = [
        *recipe.build,
        *_loaded(wanted, recipe),
        *_attached(wanted),
        *_expected(wanted),
        "for splits in SPLITS:",
        *_indented([*_microbatch(wanted, recipe), *_compared(wanted, recipe)]),
        *_told(wanted),
    ]
    return [
        *head,
        f'G, K, N, DTYPE, DEVICE = {shape}, {DTYPES[case.dtype]}, "{wanted.device}"',
        f"SPLITS = {[list(case.splits(k)) for k in range(case.microbatches)]}  # tokens of each expert, by microbatch",
        "torch.manual_seed(0)",
        _draw(wanted),
        *([STATE] if any("state(" in line for line in rest) else []),
        *rest,
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _draw(wanted: Wanted) -> str:
    if wanted.data == "normal":
        return "def draw(*shape): return torch.randn(*shape, device=DEVICE).to(DTYPE)"
    largest = LARGE[wanted.case.dtype] if wanted.data == "large integers" else SMALL
    return f"def draw(*shape): return torch.randint(-{largest}, {largest + 1}, shape, device=DEVICE).to(DTYPE)"


def _loaded(wanted: Wanted, recipe: Recipe) -> list[str]:
    """Weights and biases, where the result depends on them; to their own gradients they are of no account."""
    if wanted.failure.role not in ("fprop", "dgrad"):
        return []
    lines = [f"w = draw(G, N, K){wanted.power('w')}", "with torch.no_grad():", *_indented(recipe.load)]
    return lines + ([f"    for b in biases: b.fill_(1.0{wanted.power('x', 'w')})"] if wanted.case.bias else [])


def _attached(wanted: Wanted) -> list[str]:
    if not wanted.attaches_main_grad:
        return []
    said = wanted.failure.diagnosis
    value = f"{PREFILL[wanted.data]}{wanted.power('x', 'g')}"
    return [
        "for p in weights:  # as a data-parallel wrapper does",
        f"    p.main_grad = torch.full(p.shape, {value}, device=DEVICE); p.grad_added_to_main_grad = False",
        *(["given = [p.main_grad for p in weights]"] if said == "main_grad replaced" else []),
        *(["before = [p.main_grad.clone() for p in weights]"] if said == "main_grad written" else []),
    ]


def _expected(wanted: Wanted) -> list[str]:
    role = wanted.failure.role
    if not wanted.compares:
        return []
    if role == "wgrad":
        lines = [f"expected = torch.full((G, N, K), {_start(wanted)}, device=DEVICE, dtype=torch.float64)"]
    elif role == "bgrad":
        lines = ["expected = torch.zeros(G, N, device=DEVICE, dtype=torch.float64)"]
    else:
        return ["wrong = []"]
    return [*lines, *(["whole = expected.clone()"] if wanted.rounds_in_steps else [])]


def _microbatch(wanted: Wanted, recipe: Recipe) -> list[str]:
    power = wanted.power("x")
    drawn = f"(draw(sum(splits), K){power})" if power else "draw(sum(splits), K)"
    lines = [f"x = {drawn}.requires_grad_()"]
    if wanted.case.grad_output == "expanded":
        ones = ["g = torch.ones_like(y)"] if wanted.compares else []
        return [*lines, f"y = {recipe.call}", "y.sum().backward()", *ones]
    return [*lines, f"g = draw(sum(splits), N){wanted.power('g')}", f"y = {recipe.call}", "y.backward(g)"]


def _start(wanted: Wanted) -> str:
    """What a weight's buffer holds before the first microbatch."""
    return f"{PREFILL[wanted.data]}{wanted.power('x', 'g')}" if wanted.into_main_grad else "0.0"


def _compared(wanted: Wanted, recipe: Recipe) -> list[str]:
    """What is right after a microbatch, in fp64."""
    case, role = wanted.case, wanted.failure.role
    if not wanted.compares:
        return []
    if role in ("wgrad", "bgrad"):
        fused = wanted.into_main_grad
        whole = own = "gi.T @ xi" if role == "wgrad" else "gi.sum(0)"
        own = f"({own}).to(DTYPE)" if wanted.rounds and (recipe.hook or not fused) else own
        rounds = wanted.rounds and not fused
        step = f"expected[i] = (expected[i] + {own}).to(DTYPE)" if rounds else f"expected[i] += {own}"
        parts = "zip(x.detach().double().split(splits), g.double().split(splits))"
        beside = [f"    whole[i] += {whole}"] if wanted.rounds_in_steps else []
        return [f"for i, (xi, gi) in enumerate({parts}):", f"    {step}", *beside]
    found, rows, factor = ("y.detach()", "x.detach()", "w.double()[i].T")
    if role == "dgrad":
        found, rows, factor = ("x.grad", "g", "w.double()[i]")
    bias = f" + 1.0{wanted.power('x', 'w')}" if role == "fprop" and case.bias else ""
    whole = f"torch.cat([r @ {factor} for i, r in enumerate({rows}.double().split(splits))])"
    return [
        *_product(wanted, whole, bias),
        f"found = {found}",
        *(["expected = torch.where(found == twice, twice, expected)"] if wanted.rounds and bias else []),
        f"if found is None or {_differs(wanted, 'found', 'expected')}:",
        "    wrong.append(splits)",
        *_indented(_beside(wanted, "found", "expected", "microbatch {splits}")),
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


def _differs(wanted: Wanted, found: str, expected: str, otherwise: str = "") -> str:
    """Where something else is found than what is right, or in another order of its roundings as right."""
    if wanted.data == "normal":
        return f"({found} - {expected}).norm() > {ROUNDINGS[wanted.case.dtype]} * {expected}.norm()"
    differs = f"not torch.equal({found}.double(), {expected})"
    if otherwise:
        differs = f"not ((({found} == {expected}) | ({found} == {otherwise})).all())"
    if not wanted.looks_at_shape:
        return differs
    dtype = "torch.float32" if wanted.into_main_grad else "DTYPE"
    return f"{found}.dtype != {dtype} or {differs}"


def _beside(wanted: Wanted, found: str, expected: str, where: str) -> list[str]:
    """What was found beside what was expected, where they differ most; or why there is no such element."""
    if not (wanted.failure.outcome.wrong_value or wanted.failure.outcome is Outcome.NONFINITE):
        return [f'print(f"{where}: expected", state({expected}), "found", state({found}))']
    values = f"expected {{{expected}.flatten()[at]:.8g}}, found {{{found}.flatten()[at]:.8g}}"
    return [f"at = ({found} - {expected}).abs().argmax()", f'print(f"{where}, where they differ most: {values}")']


STATE = 'def state(t): return "None" if t is None else f"{tuple(t.shape)} {t.dtype}, largest {t.abs().max():.4g}"'


def _told(wanted: Wanted) -> list[str]:
    """Where each gradient went, the fault, and the exit code."""
    role, said, of = wanted.failure.role, f"{wanted.failure.role} is not what it must be", "experts"
    if wanted.failure.outcome.no_end:
        return ['print("ok: it has come to its end")']
    lines = [] if wanted.compares and role in ("fprop", "dgrad") else _states(wanted)
    if wanted.looks_at_attributes:
        test, said = WRONG[wanted.failure.diagnosis]
        of = "weights"
        lines.append(f"wrong = [i for i, p in enumerate(weights) if {test}]")
    elif role in ("wgrad", "bgrad"):
        differs = _differs(wanted, "found[i]", "expected[i]", _at_once(wanted))
        lines += [_found(wanted), f"wrong = [i for i in range(G) if found[i] is None or {differs}]"]
        lines += ["for i in wrong[:1]:", *_indented(_beside(wanted, "found[i]", "expected[i]", "expert {i}"))]
        if any(sum(wanted.case.splits(k)) for k in range(wanted.case.microbatches)):
            lines.append(f"assert (expected != {_start(wanted)}).any()  # or nothing could be seen")
    else:
        of = "microbatches of"
    ending = f'print("{FAULT} {said}: {of}" if wrong else "ok", wrong or "")'
    return [*lines, ending, "sys.exit(bool(wrong))"]


def _at_once(wanted: Wanted) -> str:
    """What a sum of microbatches may as rightly be: rounded at its end alone, as in `compute/contents.py`; else ""."""
    if not wanted.rounds_in_steps:
        return ""
    return "whole[i]" if wanted.into_main_grad else "whole[i].to(DTYPE).double()"


def _states(wanted: Wanted) -> list[str]:
    """What became of the gradients, whichever is wrong."""
    lines = ['print("input.grad:", state(x.grad))'] if sum(wanted.case.splits(wanted.case.microbatches - 1)) else []
    main_grad = ', "main_grad", state(p.main_grad), "added:", p.grad_added_to_main_grad'
    each = f'print(f"weight {{i}}: .grad", state(p.grad){main_grad if wanted.attaches_main_grad else ""})'
    return [*lines, "for i, p in enumerate(weights):", f"    {each}"]


def _found(wanted: Wanted) -> str:
    if wanted.failure.role == "bgrad":
        return "found = [b.grad for b in biases]"
    buffer = "main_grad" if wanted.case.fuse_wgrad_accumulation else "grad"
    if wanted.case.single_grouped_weight:
        return f"found = [None] * G if weights[0].{buffer} is None else list(weights[0].{buffer})"
    return f"found = [p.{buffer} for p in weights]"
