"""How is a layer of Transformer Engine built and called in a few lines?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import is_first
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.recipe import RECIPES
from gradcheck_cli.records.splits import TAIL
from gradcheck_cli.reproduce.making import PROBS, Making, load_each

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


def module(case: Case, environment: Environment) -> Making:
    """te.GroupedLinear."""
    argument = environment.version("transformer_engine") >= PATH_IS_AN_ARGUMENT
    native = case.path == "native"
    options = _options(case, {"bias": case.bias, "params_dtype": "DTYPE", "device": "DEVICE"})
    splits = SPLITS_AS[case.m_splits_as] or SPLITS_AS["device" if native and argument else "list"]
    if case.fuse_wgrad_accumulation:
        options.append("fuse_wgrad_accumulation=True")
    if case.path != "auto" and argument:
        options.append(f"use_grouped_tensor={native}")
    return Making(
        variables={SWITCH: str(int(native))} if case.path != "auto" and not argument else {},
        imports=["import transformer_engine.pytorch as te"],
        build=[
            f"layer = te.GroupedLinear(num_gemms=G, in_features=K, out_features=N, {', '.join(options)})",
            *_parameters(case),
        ],
        call=_call(case, splits),
        load=_load(case),
        bias=_bias(case),
    )


def op(case: Case, _: Environment) -> Making:
    """te.ops.GroupedLinear."""
    return Making(
        variables={},
        imports=["import transformer_engine.pytorch.ops as te_ops"],
        build=[_made("layer", case, "K, N"), *_parameters(case)],
        call=_call(case, SPLITS_AS[case.m_splits_as] or SPLITS_AS["device"]),
        load=_load(case),
        bias=_bias(case),
    )


def op_mlp(case: Case, _: Environment) -> Making:
    """te.ops.Sequential of two of them with ScaledSwiGLU between; each op takes an input of its own besides."""
    return Making(
        variables={},
        imports=["import transformer_engine.pytorch.ops as te_ops"],
        build=[
            _made("fc1", case, "K, 2 * N"),
            _made("fc2", case, "N, K"),
            "layer = te_ops.Sequential(fc1, te_ops.ScaledSwiGLU(), fc2)",
            f"weights = {_weights('fc1', case)}",
            f"weights_fc2 = {_weights('fc2', case)}",
        ],
        call="layer(x, sizes, probs, sizes)",
        load=[],
        each=(PROBS, f"sizes = {SPLITS_AS[case.m_splits_as] or SPLITS_AS['device']}"),
    )


def _made(name: str, case: Case, features: str) -> str:
    options = _options(case, {"bias": case.bias, "dtype": "DTYPE", "device": "DEVICE"})
    if case.fuse_wgrad_accumulation:
        options.append("accumulate_into_main_grad=True")
    return f"{name} = te_ops.GroupedLinear(G, {features}, {', '.join(options)})"


def _options(case: Case, common: dict[str, object]) -> list[str]:
    asked = {name: True for name in KNOBS if getattr(case, name)}
    return [f"{name}={value}" for name, value in {**common, **asked}.items()]


def _call(case: Case, splits: str) -> str:
    first = "" if is_first(case, 0) is None else ", is_first_microbatch=k == 0"
    call = f"layer(x, {splits}{first})"
    if not case.return_bias:
        return call
    rows, biases = "p.split(splits)", "bs"
    if case.padded_tail != "none":
        rows, biases = f"p.split([*splits, {TAIL}])", "[*bs, 0]"
    return f"torch.cat([r + b for p, bs in [{call}] for r, b in zip({rows}, {biases})])"


def _bias(case: Case) -> str:
    return "b.rowwise_data" if case.single_grouped_bias else "b"


def _parameters(case: Case) -> list[str]:
    biases = "[layer.bias]" if case.single_grouped_bias else '[getattr(layer, f"bias{i}") for i in range(G)]'
    return [f"weights = {_weights('layer', case)}", *([f"biases = {biases}"] if case.bias else [])]


def _weights(layer: str, case: Case) -> str:
    return (
        f"[{layer}.weight]" if case.single_grouped_weight else f'[getattr({layer}, f"weight{{i}}") for i in range(G)]'
    )


def _load(case: Case) -> list[str]:
    if not case.single_grouped_weight:
        return load_each()
    if not case.quantized_model_init:
        return ["layer.weight.rowwise_data.copy_(w.flatten())"]
    members = "layer.weight.quantized_tensors or layer.weight.split_into_quantized_tensors()"
    return [f"for m, v in zip({members}, w): m.copy_(v)"]


def quantised(case: Case, made: Making) -> Making:
    """The same layer, each of its calls under the autocast of the case's recipe; its weights kept so where asked."""
    name, asked = RECIPES[case.recipe].class_name, case.backward_override
    override = "" if asked == "none" else f'backward_override="{asked}"'
    te = "import transformer_engine.pytorch as te"
    made_first, *rest = made.build
    init = [made_first]
    if case.quantized_model_init:
        init = ["with te.quantized_model_init(enabled=True, recipe=recipe):", f"    {made_first}"]
    return made._replace(
        imports=[f"from transformer_engine.common.recipe import {name}", *dict.fromkeys([te, *made.imports])],
        build=[
            f"recipe = {name}({override})",
            *init,
            *rest,
            "def quantised(*given, **named):",
            "    with te.autocast(enabled=True, recipe=recipe): return layer(*given, **named)",
        ],
        call=made.call.replace("layer(", "quantised("),
    )
