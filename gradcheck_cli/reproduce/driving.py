"""How does a trainer drive a layer, in a few lines? What it attaches, freezes and hands over, as a case has it."""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.due import is_first
from gradcheck_cli.records.roles import is_chain
from gradcheck_cli.records.splits import TAIL

OFF = "def off(t): return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)  # one element off alignment"
# Those whose overwrite_main_grad is set, as a slice of all experts.
OVERWRITTEN = {"all": "[:]", "some": "[1::2]"}
_ASLEEP = {"all": ["weights"], "first": ["weights[:1]"], "last": ["weights[-1:]"]}


def indented(lines: list[str]) -> list[str]:
    """The lines of a block."""
    return [f"    {line}" for line in lines]


def attached(case: Case, prefill: str, device: str) -> list[str]:
    """A main_grad for each weight, and what a layer is told of it (`compute/attached.py`)."""
    dtype = ", dtype=torch.bfloat16" if case.main_grad_dtype == "bf16" else ""
    flag = "; p.grad_added_to_main_grad = False" if case.grad_added_to_main_grad == "attached" else ""
    every = "weights + weights_fc2" if is_chain(case) else "weights"
    lines = [
        f"for p in {every}:  # as a data-parallel wrapper does",
        f"    p.main_grad = torch.full(p.shape, {prefill}, device={device}{dtype}){flag}",
    ]
    if case.zero_out_wgrad:
        lines.append("    p.zero_out_wgrad = True")
    if case.overwrite_main_grad != "none":
        some = " + ".join(f"{one}{OVERWRITTEN[case.overwrite_main_grad]}" for one in every.split(" + "))
        lines.append(f"for p in {some}: p.overwrite_main_grad = True")
    return lines


def frozen(case: Case) -> list[str]:
    """Parameters that ask for no gradient."""
    asleep = [*_ASLEEP.get(case.frozen_weights, []), *(["biases"] if case.frozen_bias else [])]
    return [f"for p in {' + '.join(asleep)}: p.requires_grad = False"] if asleep else []


def awake(case: Case) -> str:
    """The numbers of the experts whose weights ask for a gradient."""
    return {"first": "range(1, G)", "last": "range(G - 1)"}.get(case.frozen_weights, "range(G)")


def every(case: Case, splits: str) -> list[str]:
    """The head of the loop over microbatches; they are numbered where not all of them go the same way."""
    if case.tied_weights:
        return ["uses = []", f"for k, splits in enumerate({splits}):"]
    return [f"for splits in {splits}:" if is_first(case, 0) is None else f"for k, splits in enumerate({splits}):"]


def backward(case: Case, grad_output: str, backward_dw: str, after: list[str]) -> list[str]:
    """The backward of an output y, with tied weights that of two together; `after` comes before backward_dw."""
    delayed = [backward_dw] if case.delay_wgrad_compute else []
    if not case.tied_weights:
        back = "y.sum().backward()" if case.grad_output == "expanded" else f"y.backward({grad_output})"
        return [back, *after, *delayed]
    given = "y.new_ones(()).expand_as(y)" if case.grad_output == "expanded" else grad_output
    both = ["torch.autograd.backward(*zip(*uses))", *after, *(f"for _ in uses: {one}" for one in delayed)]
    return [
        f"uses.append((y, {given}))",
        f"if k % 2 or k == {case.microbatches - 1}:  # one backward through both outputs",
        *indented([*both, "uses.clear()"]),
    ]


def x_of(case: Case, drawn: str) -> str:
    """An expression of x, of one of its rows as they are drawn (`compute/handed.py`)."""
    laid = _laid(case.input_layout, _padded(case, f"{drawn}.float()" if case.autocast else drawn))
    return laid if case.frozen_input else f"{laid}.requires_grad_()"


def grad_output_of(case: Case, drawn: str, *, padded: bool) -> str:
    """The same of grad_output, where it is not a sum's; `padded` where the rows drawn have the tail already."""
    return _laid(case.grad_output, drawn if padded else _padded(case, drawn))


def _padded(case: Case, drawn: str) -> str:
    large = FORMATS[case.dtype].largest / 4
    filling = {"zero": "0.0", "large": repr(large), "nan": 'float("nan")'}.get(case.padded_tail)
    return f"torch.nn.functional.pad({drawn}, (0, 0, 0, {TAIL}), value={filling})" if filling else drawn


def _laid(layout: str, rows: str) -> str:
    return {"transposed": f"{rows}.T.contiguous().T", "offset": f"off({rows})"}.get(layout, rows)


def own(case: Case) -> str:
    """The slice without the tail, which no gradient may depend on; "" where there is none."""
    return "[:sum(splits)]" if case.padded_tail != "none" else ""
