"""`.to(dtype)` does not reach a packed weight of Transformer Engine: the parameter says bf16, its memory stays fp32.

Written by hand. Eight steps of 2**-10 are each lost in a bf16 weight of 1.0, as torch rounds; a packed one keeps them,
and its next forward sees them. Exit code 1 where it is so.
"""

import os
import sys

os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
os.environ["NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"] = "1"
import torch
import transformer_engine.pytorch as te
import transformer_engine.pytorch.ops as te_ops

G, K, N, TOKENS = 2, 128, 128, 64


def build(api, packed):
    if api == "module":
        return te.GroupedLinear(G, K, N, bias=False, params_dtype=torch.float32, device="cuda", single_grouped_weight=packed)
    return te_ops.GroupedLinear(G, K, N, bias=False, dtype=torch.float32, device="cuda", single_grouped_weight=packed)


wrong = []
for api in ("op", "module"):
    for packed in (False, True):
        layer = build(api, packed)
        with torch.no_grad():
            for one in layer.parameters():
                (one.rowwise_data if packed else one).fill_(1.0)
        layer.to(torch.bfloat16)
        parameter = next(iter(layer.parameters()))
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        for _ in range(8):
            for one in layer.parameters():
                one.grad = torch.full(tuple(one.shape), -(2.0**-10), dtype=torch.bfloat16, device="cuda")
            optimizer.step()
        x = torch.zeros(G * TOKENS, K, dtype=torch.bfloat16, device="cuda")
        x[:, 0] = 1.0
        splits = torch.tensor([TOKENS] * G, device="cuda")
        try:
            found = layer(x, splits).flatten()[0].item()
        except Exception as error:
            print(f"{api}, packed={packed}: not run: {type(error).__name__}: {error}"[:200])
            continue
        memory = f", and is {parameter.rowwise_data.dtype} in memory" if packed else ""
        print(f"{api}, packed={packed}: the parameter says {parameter.dtype}{memory}; expected 1.0, found {found}")
        if found != 1.0:
            wrong.append(f"{api}, packed={packed}")
print("FAULT:" if wrong else "ok", *wrong)
sys.exit(bool(wrong))
