"""How is a candidate's layer built and called in a few lines? The text of it, for a script that knows no gradcheck."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
# From here on an argument chooses the path of te.GroupedLinear, before it a variable (te_module.py).
PATH_IS_AN_ARGUMENT = (2, 19)
SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"


class Recipe(NamedTuple):
    """Lines of Python: what stands before the import of torch, the imports, and how to make and call the layer.

    `build` draws the parameters where the layer does not, so that nothing printed is chance, and ends with `weights`
    and `biases`, lists of parameters; `call` is an expression of x and splits; `load` writes w (G, N, K) and b (G, N)
    into them.
    """

    variables: dict[str, str]
    imports: list[str]
    build: list[str]
    call: str
    load: list[str]
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
        call="layer(x, torch.tensor(splits, device=DEVICE))" if native and argument else "layer(x, splits)",
        load=_te_load(case),
    )


def _op(case: Case, _: Environment) -> Recipe:
    options = _options(case, {"bias": case.bias, "dtype": "DTYPE", "device": "DEVICE"})
    if case.fuse_wgrad_accumulation:
        options.append("accumulate_into_main_grad=True")
    return Recipe(
        variables={},
        imports=["import transformer_engine.pytorch.ops as te_ops"],
        build=[f"layer = te_ops.GroupedLinear(G, K, N, {', '.join(options)})", *_te_parameters(case)],
        call="layer(x, torch.tensor(splits, device=DEVICE))",
        load=_te_load(case),
    )


def _options(case: Case, common: dict[str, object]) -> list[str]:
    packed = {"single_grouped_weight": True} if case.single_grouped_weight else {}
    return [f"{name}={value}" for name, value in {**common, **packed}.items()]


def _te_parameters(case: Case) -> list[str]:
    weights = "[layer.weight]" if case.single_grouped_weight else '[getattr(layer, f"weight{i}") for i in range(G)]'
    biases = ['biases = [getattr(layer, f"bias{i}") for i in range(G)]'] if case.bias else []
    return [f"weights = {weights}", *biases]


def _te_load(case: Case) -> list[str]:
    if case.single_grouped_weight:
        return ["layer.weight.rowwise_data.copy_(w.flatten())"]
    return _load_each()


def _load_each() -> list[str]:
    return ["for parameter, value in zip(weights, w):", "    parameter.copy_(value)"]


def _torch_parameters(case: Case) -> list[str]:
    sizes, count = ("G, N, K", "1") if case.single_grouped_weight else ("N, K", "G")
    made = "torch.nn.Parameter(torch.randn({}, dtype=DTYPE, device=DEVICE))"
    lines = [f"weights = [{made.format(sizes)} for _ in range({count})]"]
    if case.bias:
        lines.append(f"biases = [{made.format('N')} for _ in range(G)]")
    if case.fuse_wgrad_accumulation:
        lines += [
            "def add(p):  # as a data-parallel wrapper does",
            "    p.main_grad += p.grad",
            "    p.grad, p.grad_added_to_main_grad = None, True",
            "for p in weights:",
            "    p.register_post_accumulate_grad_hook(add)",
        ]
    return lines


def _loop(case: Case, _: Environment) -> Recipe:
    each = "weights[0].unbind()" if case.single_grouped_weight else "weights"
    biases = "biases" if case.bias else "[None] * G"
    one = "torch.nn.functional.linear(r, w, b)"
    call = f"torch.cat([{one} for r, w, b in zip(x.split(splits), {each}, {biases})])"
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else _load_each()
    return Recipe({}, [], _torch_parameters(case), call, load)


def _grouped_mm(case: Case, _: Environment) -> Recipe:
    whole = "weights[0]" if case.single_grouped_weight else "torch.stack(weights)"
    ends = "torch.tensor(splits, device=DEVICE).cumsum(0).to(torch.int32)"
    call = f"torch.nn.functional.grouped_mm(x, {whole}.transpose(-2, -1), offs={ends})"
    if case.bias:
        call = f"torch.cat([r + b for r, b in zip({call}.split(splits), biases)])"
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else _load_each()
    return Recipe({}, [], _torch_parameters(case), call, load)


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
