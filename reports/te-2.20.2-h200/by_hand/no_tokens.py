"""Where no expert has a token, a bf16 main_grad that the native path adds to becomes NaN, by what free memory held.

Written by hand. Under Float8CurrentScaling `tex.group_quantize` of no rows writes no `scale_inv`, which the wgrad GEMM
multiplies by. Free memory is filled before each call; main_grad must stay what it was. Exit code 1 where it does not.
"""

import os
import sys

os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
os.environ["NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"] = "1"
import torch
import transformer_engine.pytorch as te
import transformer_engine.pytorch.ops as te_ops
from transformer_engine.common.recipe import Float8CurrentScaling

G, K, N = 2, 128, 128


def leave(value):
    """Free memory of the small sizes of torch's caching allocator, holding a value."""
    kept = [torch.full((size,), value, device="cuda") for size in (16, 128, 512, 4096) for _ in range(512)]
    torch.cuda.synchronize()
    del kept


def build(api):
    how = {"fuse_wgrad_accumulation": True} if api == "module" else {"accumulate_into_main_grad": True}
    kind = te.GroupedLinear if api == "module" else te_ops.GroupedLinear
    dtype = {"params_dtype": torch.bfloat16} if api == "module" else {"dtype": torch.bfloat16}
    return kind(G, K, N, bias=False, device="cuda", **dtype, **how)


wrong = []
for api in ("op", "module"):
    for name, value in (("zeros", 0.0), ("NaN", float("nan")), ("1e30", 1e30)):
        layer = build(api)
        for one in layer.parameters():
            one.main_grad = torch.full(one.shape, 3.0, dtype=torch.bfloat16, device="cuda")
        x = torch.empty(0, K, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        splits = torch.zeros(G, dtype=torch.int64, device="cuda")
        leave(value)
        try:
            with te.autocast(enabled=True, recipe=Float8CurrentScaling()):
                y = layer(x, splits)
            y.backward(torch.empty_like(y))
        except Exception as error:
            print(f"{api}, free memory of {name}: not run: {type(error).__name__}: {error}"[:200])
            continue
        found = [one.main_grad.float().flatten()[0].item() for one in layer.parameters()]
        print(f"{api}, free memory of {name}: expected 3.0, found {found}")
        if found != [3.0] * len(found):
            wrong.append(f"{api} after {name}")
print("FAULT:" if wrong else "ok", *wrong)
sys.exit(bool(wrong))
