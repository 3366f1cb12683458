"""How is a candidate's layer built and called in a few lines? The text of it, for a script that knows no gradcheck."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import is_first
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.splits import TAIL
from gradcheck_cli.reproduce.driving import own

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
# From here on an argument chooses the path of te.GroupedLinear, before it a variable (te_module.py).
PATH_IS_AN_ARGUMENT = (2, 19)
SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"

# What te.GroupedLinear or the op is told by arguments, each as the axis of that name.
KNOBS = ("single_grouped_weight", "single_grouped_bias", "delay_wgrad_compute", "return_bias", "save_original_input")
SPLITS_AS = {
    "auto": "",
    "list": "splits",
    "host": "torch.tensor(splits)",
    "device": "torch.tensor(splits, device=DEVICE)",
}


class Recipe(NamedTuple):
    """Lines of Python: what stands before the import of torch, the imports, and how to make and call the layer.

    `build` draws the parameters where the layer does not, so that nothing printed is chance, and ends with `weights`
    and `biases`, lists of parameters; `call` is an expression of x and splits, and of k where a layer is told which
    microbatch is the first; `load` writes w (G, N, K) into them, and `bias` is what of a bias b can be filled.
    """

    variables: dict[str, str]
    imports: list[str]
    build: list[str]
    call: str
    load: list[str]
    bias: str = "b"
    backward_dw: str = "layer.backward_dw()"
    hook: bool = False  # whether main_grad gets what was rounded to the dtype before, as a hook adds it


def recipe(case: Case, target: str, variables: dict[str, str], environment: Environment) -> Recipe:
    """The recipe of a case; a plug-in is built by its own entry point, which takes the case itself."""
    known: dict[tuple[str, str], Callable[[Case, Environment], Recipe]] = {
        ("te", "module"): _module,
        ("te", "op"): _op,
        ("torch", "loop"): _loop,
        ("torch", "grouped_mm"): _grouped_mm,
    }
    make = known.get((case.provider, case.api))
    made = make(case, environment) if make else _plugged_in(case, target)
    # Variables that only make gradcheck faster or steadier are no part of the failure.
    needed = {name: value for name, value in variables.items() if name.startswith("NVTE_")}
    return made._replace(variables={**needed, **made.variables})


def _module(case: Case, environment: Environment) -> Recipe:
    argument = environment.version("transformer_engine") >= PATH_IS_AN_ARGUMENT
    native = case.path == "native"
    options = _options(case, {"bias": case.bias, "params_dtype": "DTYPE", "device": "DEVICE"})
    splits = SPLITS_AS[case.m_splits_as] or SPLITS_AS["device" if native and argument else "list"]
    if case.fuse_wgrad_accumulation:
        options.append("fuse_wgrad_accumulation=True")
    if case.path != "auto" and argument:
        options.append(f"use_grouped_tensor={native}")
    return Recipe(
        variables={SWITCH: str(int(native))} if case.path != "auto" and not argument else {},
        imports=["import transformer_engine.pytorch as te"],
        build=[
            f"layer = te.GroupedLinear(num_gemms=G, in_features=K, out_features=N, {', '.join(options)})",
            *_te_parameters(case),
        ],
        call=_te_call(case, splits),
        load=_te_load(case),
        bias=_te_bias(case),
    )


def _op(case: Case, _: Environment) -> Recipe:
    options = _options(case, {"bias": case.bias, "dtype": "DTYPE", "device": "DEVICE"})
    if case.fuse_wgrad_accumulation:
        options.append("accumulate_into_main_grad=True")
    return Recipe(
        variables={},
        imports=["import transformer_engine.pytorch.ops as te_ops"],
        build=[f"layer = te_ops.GroupedLinear(G, K, N, {', '.join(options)})", *_te_parameters(case)],
        call=_te_call(case, SPLITS_AS[case.m_splits_as] or SPLITS_AS["device"]),
        load=_te_load(case),
        bias=_te_bias(case),
    )


def _options(case: Case, common: dict[str, object]) -> list[str]:
    asked = {name: True for name in KNOBS if getattr(case, name)}
    return [f"{name}={value}" for name, value in {**common, **asked}.items()]


def _te_call(case: Case, splits: str) -> str:
    first = "" if is_first(case, 0) is None else ", is_first_microbatch=k == 0"
    call = f"layer(x, {splits}{first})"
    if not case.return_bias:
        return call
    rows, biases = "p.split(splits)", "bs"
    if case.padded_tail != "none":
        rows, biases = f"p.split([*splits, {TAIL}])", "[*bs, 0]"
    return f"torch.cat([r + b for p, bs in [{call}] for r, b in zip({rows}, {biases})])"


def _te_bias(case: Case) -> str:
    return "b.rowwise_data" if case.single_grouped_bias else "b"


def _te_parameters(case: Case) -> list[str]:
    weights = "[layer.weight]" if case.single_grouped_weight else '[getattr(layer, f"weight{i}") for i in range(G)]'
    biases = "[layer.bias]" if case.single_grouped_bias else '[getattr(layer, f"bias{i}") for i in range(G)]'
    return [f"weights = {weights}", *([f"biases = {biases}"] if case.bias else [])]


def _te_load(case: Case) -> list[str]:
    if case.single_grouped_weight:
        return ["layer.weight.rowwise_data.copy_(w.flatten())"]
    return _load_each()


def _load_each() -> list[str]:
    return ["for parameter, value in zip(weights, w):", "    parameter.copy_(value)"]


def _torch(case: Case, call: str) -> Recipe:
    """A layer of plain torch, of which `call` makes an output without a tail."""
    sizes, count = ("G, N, K", "1") if case.single_grouped_weight else ("N, K", "G")
    made = "torch.nn.Parameter(torch.randn({}, dtype=DTYPE, device=DEVICE))"
    build = [f"weights = [{made.format(sizes)} for _ in range({count})]"]
    if case.bias:
        sizes, count = ("G, N", "1") if case.single_grouped_bias else ("N", "G")
        build.append(f"biases = [{made.format(sizes)} for _ in range({count})]")
    if case.fuse_wgrad_accumulation:
        build += _added(case)
    if case.delay_wgrad_compute:
        build += _delayed(case)
    if case.padded_tail != "none":
        call = f"torch.nn.functional.pad({call}, (0, 0, 0, {TAIL}))"
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else _load_each()
    return Recipe({}, [], build, call, load, backward_dw="backward_dw()")


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
    return [*lines, "for p in weights:", "    p.register_post_accumulate_grad_hook(add)"]


def _delayed(case: Case) -> list[str]:
    pairs = "zip(weights, used.pop(0))"
    if case.frozen_weights != "none":
        pairs = f"((p, one) for p, one in {pairs} if p.requires_grad)"
    return [
        "used = []  # what each forward multiplies, and backward_dw takes the gradients of",
        "def stand_ins(): used.append([p.detach().requires_grad_(p.requires_grad) for p in weights]); return used[-1]",
        "def backward_dw():",
        f"    for p, one in {pairs}:",
        "        p.grad = one.grad if p.grad is None else p.grad + one.grad",
        *(["        add(p)"] if case.fuse_wgrad_accumulation else []),
    ]


def _weights(case: Case) -> str:
    return "stand_ins()" if case.delay_wgrad_compute else "weights"


def _biases(case: Case) -> str:
    return "biases[0].unbind()" if case.single_grouped_bias else "biases"


def _loop(case: Case, _: Environment) -> Recipe:
    each = f"{_weights(case)}[0].unbind()" if case.single_grouped_weight else _weights(case)
    biases = _biases(case) if case.bias else "[None] * G"
    one = "torch.nn.functional.linear(r, w, b)"
    return _torch(case, f"torch.cat([{one} for r, w, b in zip(x{own(case)}.split(splits), {each}, {biases})])")


def _grouped_mm(case: Case, _: Environment) -> Recipe:
    whole = f"{_weights(case)}[0]" if case.single_grouped_weight else f"torch.stack({_weights(case)})"
    ends = "torch.tensor(splits, device=DEVICE).cumsum(0).to(torch.int32)"
    call = f"torch.nn.functional.grouped_mm(x, {whole}.transpose(-2, -1), offs={ends}){own(case)}"
    if case.bias:
        call = f"torch.cat([r + b for r, b in zip({call}.split(splits), {_biases(case)})])"
    return _torch(case, call)


def _plugged_in(case: Case, target: str) -> Recipe:
    module, _, name = target.partition(":")
    build = [
        f'layer = {name}(Case.parse("{case}"), torch.device(DEVICE))',
        f"layer.load(torch.randn(G, N, K), {'torch.randn(G, N)' if case.bias else None})",
        "weights = list(layer.weights)",
        *(["biases = list(layer.biases)"] if case.bias else []),
    ]
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else _load_each()
    return Recipe(
        variables={},
        imports=["from gradcheck_cli.records.case import Case", f"from {module} import {name}"],
        build=build,
        call="layer.forward(x, tuple(splits))",
        load=load,
    )
