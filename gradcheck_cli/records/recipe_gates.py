"""What closes a recipe here, or the native path to it, and what would open it?

Read from `check_recipe_support` in transformer_engine/pytorch/quantization.py and from
`is_module_grouped_tensor_path_supported` in pytorch/module/grouped_linear.py and its like in
pytorch/ops/basic/grouped_linear.py, 2.17.1 to 2.20.2, and from what an H200 does (reports/te-*-h200/fp8-*).
"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment, Version
from gradcheck_cli.records.gate import Gate
from gradcheck_cli.records.recipe import Recipe, recipe_of

BLACKWELL, AFTER_BLACKWELL = (10, 0), (12, 0)
ON_BLACKWELL_ALONE = ("MXFP8", "NVFP4")
# cuBLASLt that the native path of a recipe asks of Hopper, by the version of Transformer Engine that asks it.
NATIVE_ON_HOPPER = {
    "Float8CurrentScaling": (((2, 18), (13, 5)),),
    "Float8BlockScaling": (((2, 19), (13, 6)), ((2, 18), (13, 4))),
}

# From when on weights that are kept quantised with Float8CurrentScaling can be packed; with DelayedScaling never.
PACKED_SINCE = {"module": (2, 19), "op": (2, 18)}


def recipe_gates(case: Case, environment: Environment) -> list[Gate | None]:
    """Everything that closes the case's recipe, or its native path."""
    recipe = recipe_of(case)
    if recipe is None or case.provider != "te":
        return []
    return [
        _device_gate(recipe, environment),
        _fp8_gate(recipe, environment),
        _native_override_gate(case) or _native_gate(recipe, environment),
        _rows_gate(recipe, case),
        _columns_gate(case),
        _op_gate(recipe, case),
        _original_gate(recipe, case, environment),
        _override_gate(case, environment),
        _packed_gate(recipe, case, environment),
    ]


def _capability(environment: Environment) -> tuple[int, int]:
    return environment.compute_capability or (9, 0)


def _device_gate(recipe: Recipe, environment: Environment) -> Gate | None:
    """Some need Blackwell, and MXFP8 no later one."""
    here = _capability(environment)
    late = recipe.name == "MXFP8" and here >= AFTER_BLACKWELL
    if recipe.name not in ON_BLACKWELL_ALONE or (here >= BLACKWELL and not late):
        return None
    return Gate(
        name="recipe_device",
        found=f"recipe={recipe.name} on compute capability {here[0]}.{here[1]}",
        unlock="a GPU of 10.0 (Blackwell)",
    )


def _fp8_gate(recipe: Recipe, environment: Environment) -> Gate | None:
    """FP8 needs Ada, and scaled by blocks Hopper and CUDA 12.9."""
    if recipe.name in ON_BLACKWELL_ALONE:
        return None
    blocks = recipe.name == "Float8BlockScaling"
    here, needed = _capability(environment), (9, 0) if blocks else (8, 9)
    if here < needed:
        found = f"recipe={recipe.name} on compute capability {here[0]}.{here[1]}"
        return Gate(name="recipe_fp8", found=found, unlock=f"a GPU of {needed[0]}.{needed[1]} or newer")
    cuda = environment.versions.get("cuda", "")
    if not blocks or not cuda or environment.version("cuda") >= (12, 9):
        return None
    return Gate(
        name="recipe_fp8", found=f"recipe={recipe.name} with CUDA {cuda}", unlock="a torch of CUDA 12.9 or newer"
    )


def _native_gate(recipe: Recipe, environment: Environment) -> Gate | None:
    """Which recipes the native path knows, and from which cuBLASLt on."""
    te, cublas = environment.version("transformer_engine"), environment.version("cublaslt")
    if recipe.name in ON_BLACKWELL_ALONE:
        return None
    asked = next((needs for since, needs in NATIVE_ON_HOPPER.get(recipe.name, ()) if te >= since), None)
    here = f"recipe={recipe.name}, which the native path does not know"
    if recipe.name not in NATIVE_ON_HOPPER:
        newer = "" if te >= (2, 18) else " of Transformer Engine 2.18 or newer"
        return Gate(name="recipe", found=here, unlock=f"recipe=Float8CurrentScaling{newer}")
    if asked is None:
        return Gate(name="recipe", found=f"{here} before 2.18", unlock="Transformer Engine 2.18 or newer")
    if _capability(environment) >= BLACKWELL:
        return _native_on_blackwell(recipe, f"{here} on Blackwell", te)
    if cublas >= asked:
        return None
    found = f"recipe={recipe.name} with cuBLASLt {environment.versions.get('cublaslt', '(none)')}"
    return Gate(name="recipe", found=found, unlock=f"cuBLASLt {asked[0]}.{asked[1]} or newer at run time")


def _native_on_blackwell(recipe: Recipe, found: str, te: Version) -> Gate | None:
    """Scaling by blocks has no native path there, from which 2.18 does not fall back."""
    if recipe.name == "Float8CurrentScaling":
        return None
    name = "recipe" if te >= (2, 19) else "recipe_blackwell"
    return Gate(name=name, found=found, unlock="recipe=Float8CurrentScaling")


def _native_override_gate(case: Case) -> Gate | None:
    """The op does not ask for it (`is_op_fuser_grouped_tensor_path_supported`)."""
    if case.backward_override == "none" or case.api != "module":
        return None
    found = f"backward_override={case.backward_override}, which the native path does not know"
    return Gate(name="recipe", found=found, unlock="path=legacy, or backward_override=none")


def _override_gate(case: Case, environment: Environment) -> Gate | None:
    """Recipes have it since 2.15 (transformer_engine/common/recipe/__init__.py)."""
    if case.backward_override == "none" or environment.version("transformer_engine") >= (2, 15):
        return None
    found = f"backward_override={case.backward_override}"
    return Gate(name="recipe_override", found=found, unlock="Transformer Engine 2.15 or newer")


def _rows_gate(recipe: Recipe, case: Case) -> Gate | None:
    """The wgrad of FP8 operands sums over tokens, whose number is then a leading dimension; blocks lie along it too.

    `CanonicalizeGemmInput` in transformer_engine/common/gemm/cublaslt_gemm.cu, as seen on an H200.
    """
    if recipe.scale == "quotient" and (case.frozen_weights == "all" or case.backward_override != "none"):
        return None
    odd = [k for k in range(case.microbatches) if any(tokens % recipe.rows for tokens in case.splits(k))]
    if not odd:
        return None
    return Gate(
        name="recipe_rows",
        found=f"an expert whose tokens are no multiple of {recipe.rows}",
        unlock=f"m_splits of multiples of {recipe.rows}, as Fp8Padding makes them",
        microbatch=odd[0],
    )


def _columns_gate(case: Case) -> Gate | None:
    odd = [f"{name}={getattr(case, name)}" for name in ("in_features", "out_features") if getattr(case, name) % 16]
    if not odd:
        return None
    return Gate(
        name="recipe_columns",
        found=f"{' and '.join(odd)}, no multiple of 16",
        unlock="in_features and out_features of multiples of 16",
    )


def _op_gate(recipe: Recipe, case: Case) -> Gate | None:
    if recipe.name != "Float8BlockScaling" or case.api == "module":
        return None
    return Gate(
        name="recipe_op", found=f"{recipe.name} of a fusible op", unlock="api=module, or Transformer Engine 2.18"
    )


def _original_gate(recipe: Recipe, case: Case, environment: Environment) -> Gate | None:
    """From 2.19 on it is kept only for a wgrad, which there is where weight0 asks for one."""
    needed = case.frozen_weights not in ("all", "first") or environment.version("transformer_engine") < (2, 19)
    if not recipe.delayed or not case.save_original_input or not needed:
        return None
    return Gate(name="recipe_original", found=f"save_original_input=1 with {recipe.name}", unlock="another recipe")


def _packed_gate(recipe: Recipe, case: Case, environment: Environment) -> Gate | None:
    """Weights that are kept quantised at a tensor's own scale are not packed (`make_grouped_weights` of both)."""
    if not (case.quantized_model_init and case.single_grouped_weight and recipe.scale == "quotient"):
        return None
    since = PACKED_SINCE.get(case.api, (2, 18))
    if not recipe.delayed and environment.version("transformer_engine") >= since:
        return None
    newer = "" if recipe.delayed else f", or Transformer Engine {since[0]}.{since[1]} or newer"
    return Gate(
        name="recipe_packed",
        found=f"a packed weight that is kept quantised with {recipe.name}",
        unlock=f"single_grouped_weight=0{newer}",
    )
