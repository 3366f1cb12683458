"""What is wrapped around a layer, in a few lines? Compilation, a checkpoint, an inference (`compute/calling.py`)."""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.reproduce.making import Making


def wrapped(case: Case, made: Making) -> Making:
    """The same layer, called as the case calls it; unchanged where it calls it plainly."""
    if case.recompute == "none" and case.inference == "none" and not case.autocast and not case.compile:
        return made
    under = "with torch.autocast(DEVICE, DTYPE): " if case.autocast else ""
    build = [*made.build, "def called(x, splits):", f"    {under}return {made.call}"]
    build += ['called = torch.compile(called, backend="aot_eager")'] if case.compile else []
    te = ["import transformer_engine.pytorch as te"] if case.recompute == "te" else []
    if case.recompute == "te" and case.recipe != "none":
        build += ["def recomputed(x, splits):", f"    {_IN_FORCE}: return te.checkpoint(called, x, splits)"]
    return made._replace(
        imports=list(dict.fromkeys([*made.imports, *te])),
        build=build,
        call=_call(case),
        between=_inference(case),
    )


# te.checkpoint asks when it is called whether there is a recipe.
_IN_FORCE = "with te.autocast(enabled=True, recipe=recipe)"


def _call(case: Case) -> str:
    if case.recompute == "te":
        return "recomputed(x, splits)" if case.recipe != "none" else "te.checkpoint(called, x, splits)"
    if case.recompute == "none":
        return "called(x, splits)"
    return f"torch.utils.checkpoint.checkpoint(called, x, splits, use_reentrant={case.recompute == 'reentrant'})"


def _inference(case: Case) -> tuple[str, ...]:
    """Lines between a forward and its backward. A layer of plain torch is no module here, and knows no mode."""
    if case.inference == "none":
        return ()
    evaluated = case.inference == "eval" and case.provider == "te"
    line = "with torch.no_grad(): called(-x.detach(), splits)"
    return ("layer.eval()", line, "layer.train()") if evaluated else (line,)
