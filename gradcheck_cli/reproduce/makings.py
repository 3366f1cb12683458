"""How is a candidate's layer built and called in a few lines? The text of it, for a script that knows no gradcheck."""

from __future__ import annotations

from collections.abc import Callable

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.roles import CHAIN, is_chain
from gradcheck_cli.reproduce import called, te_lines, torch_lines
from gradcheck_cli.reproduce.making import PROBS, Making, load_each

MAKERS: dict[tuple[str, str], Callable[[Case, Environment], Making]] = {
    ("te", "module"): te_lines.module,
    ("te", "op"): te_lines.op,
    ("te", CHAIN): te_lines.op_mlp,
    ("torch", "loop"): torch_lines.loop,
    ("torch", "grouped_mm"): torch_lines.grouped_mm,
    ("torch", CHAIN): torch_lines.op_mlp,
}


def making(case: Case, target: str, variables: dict[str, str], environment: Environment) -> Making:
    """The making of a case; a plug-in is built by its own entry point, which takes the case itself."""
    make = MAKERS.get((case.provider, case.api))
    made = make(case, environment) if make else _plugged_in(case, target)
    if case.recipe != "none" and case.provider == "te":
        made = te_lines.quantised(case, made)
    made = called.wrapped(case, made)
    # Variables that only make gradcheck faster or steadier are no part of the failure.
    needed = {name: value for name, value in variables.items() if name.startswith(("NVTE_", "CUBLAS_"))}
    return made._replace(variables={**needed, **made.variables})


def _plugged_in(case: Case, target: str) -> Making:
    module, _, name = target.partition(":")
    build = [
        f'layer = {name}(Case.parse("{case}"), torch.device(DEVICE))',
        f"layer.load(torch.randn(G, N, K), {'torch.randn(G, N)' if case.bias else None})",
        "weights = list(layer.weights)",
        *(["biases = list(layer.biases)"] if case.bias else []),
    ]
    load = ["weights[0].copy_(w)"] if case.single_grouped_weight else load_each()
    made = Making(
        variables={},
        imports=["from gradcheck_cli.records.case import Case", f"from {module} import {name}"],
        build=build,
        call="layer.forward(x, tuple(splits))",
        load=load,
    )
    return _with_two_layers(made) if is_chain(case) else made


def _with_two_layers(made: Making) -> Making:
    """The making of a plug-in's chain (`compute/provider.py`)."""
    build = [
        made.build[0],
        "layer.load(torch.randn(G, 2 * N, K) / K**0.5, None)",
        "layer.load_fc2(torch.randn(G, K, N) / N**0.5)",
        "weights, weights_fc2 = list(layer.weights), list(layer.weights_fc2)",
    ]
    return made._replace(build=build, load=[], each=(PROBS, "layer.scale_by(probs)"))
