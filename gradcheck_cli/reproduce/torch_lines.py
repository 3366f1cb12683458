"""How is a layer of plain torch built and called in a few lines?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import is_first
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.roles import is_chain
from gradcheck_cli.records.splits import TAIL
from gradcheck_cli.reproduce.driving import own
from gradcheck_cli.reproduce.making import PROBS, Making, load_each


def _layer(case: Case, call: str) -> Making:
    """A layer of plain torch, of which `call` makes an output without a tail."""
    build = [f"weights = {_drawn('N, K', packed=case.single_grouped_weight)}"]
    if case.bias:
        build.append(f"biases = {_drawn('N', packed=case.single_grouped_bias)}")
    if case.fuse_wgrad_accumulation:
        build += _added(case)
    if case.delay_wgrad_compute:
        build += _delayed(case)
    if case.padded_tail != "none":
        call = f"torch.nn.functional.pad({call}, (0, 0, 0, {TAIL}))"
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else load_each()
    return Making({}, [], build, call, load, backward_dw="backward_dw()")


def _drawn(shape: str, *, packed: bool, scale: str = "") -> str:
    """A list of parameters of that shape, one for each expert or one of all."""
    sizes, count = (f"G, {shape}", "1") if packed else (shape, "G")
    drawn = f"torch.nn.Parameter(torch.randn({sizes}, dtype=DTYPE, device=DEVICE){scale})"
    return f"[{drawn} for _ in range({count})]"


def _added(case: Case) -> list[str]:
    overwrites = [
        *(["k == 0"] if is_first(case, 0) is not None else []),
        *(['hasattr(p, "overwrite_main_grad")'] if case.overwrite_main_grad != "none" else []),
    ]
    told = ["p.grad = None", "p.grad, p.grad_added_to_main_grad = None, True"]
    lines = [
        "def add(p):  # as a data-parallel wrapper does",
        *([f"    if {' or '.join(overwrites)}: p.main_grad.zero_()"] if overwrites else []),
        "    p.main_grad += p.grad",
        f"    {told[case.grad_added_to_main_grad == 'attached']}",
    ]
    if case.delay_wgrad_compute:
        return lines
    whose = "weights + weights_fc2" if is_chain(case) else "weights"
    return [*lines, f"for p in {whose}:", "    p.register_post_accumulate_grad_hook(add)"]


def _delayed(case: Case) -> list[str]:
    pairs = "zip(weights, used.pop(0))"
    if case.frozen_weights != "none":
        pairs = f"((p, one) for p, one in {pairs} if p.requires_grad)"
    without_graph = case.inference != "none" or case.recompute != "none"
    return [
        "used = []  # what each forward multiplies, and backward_dw takes the gradients of",
        "def stand_ins():",
        *(["    if not torch.is_grad_enabled(): return weights"] if without_graph else []),
        "    used.append([p.detach().requires_grad_(p.requires_grad) for p in weights])",
        "    return used[-1]",
        "def backward_dw():",
        f"    for p, one in {pairs}:",
        "        p.grad = one.grad if p.grad is None else p.grad + one.grad",
        *(["        add(p)"] if case.fuse_wgrad_accumulation else []),
    ]


def _weights(case: Case) -> str:
    return "stand_ins()" if case.delay_wgrad_compute else "weights"


def _biases(case: Case) -> str:
    return "biases[0].unbind()" if case.single_grouped_bias else "biases"


def loop(case: Case, _: Environment) -> Making:
    """F.linear of each expert."""
    each = f"{_weights(case)}[0].unbind()" if case.single_grouped_weight else _weights(case)
    biases = _biases(case) if case.bias else "[None] * G"
    one = "torch.nn.functional.linear(r, w, b)"
    return _layer(case, f"torch.cat([{one} for r, w, b in zip(x{own(case)}.split(splits), {each}, {biases})])")


def grouped_mm(case: Case, _: Environment) -> Making:
    """One grouped_mm."""
    whole = f"{_weights(case)}[0]" if case.single_grouped_weight else f"torch.stack({_weights(case)})"
    ends = "torch.tensor(splits, device=DEVICE).cumsum(0).to(torch.int32)"
    call = f"torch.nn.functional.grouped_mm(x, {whole}.transpose(-2, -1), offs={ends}){own(case)}"
    if case.bias:
        call = f"torch.cat([r + b for r, b in zip({call}.split(splits), {_biases(case)})])"
    return _layer(case, call)


def op_mlp(case: Case, _: Environment) -> Making:
    """Two layers of F.linear of each expert, and a scaled SwiGLU between them."""
    packed = case.single_grouped_weight
    each = ("weights[0]", "weights_fc2[0]") if packed else ("weights", "weights_fc2")
    build = [
        f"weights = {_drawn('2 * N, K', packed=packed, scale=' / K**0.5')}",
        f"weights_fc2 = {_drawn('K, N', packed=packed, scale=' / N**0.5')}",
        *(_added(case) if case.fuse_wgrad_accumulation else []),
        "def linear(x, w, splits):",
        "    return torch.cat([torch.nn.functional.linear(r, wi) for r, wi in zip(x.split(splits), w)])",
        "def layer(x, probs, splits):",
        f"    gates, units = linear(x, {each[0]}, splits).chunk(2, dim=-1)",
        "    scaled = torch.nn.functional.silu(gates) * units * probs.unsqueeze(-1)",
        f"    return linear(scaled, {each[1]}, splits)",
    ]
    return Making({}, [], build, "layer(x, probs, splits)", [], each=(PROBS,))
