"""An op that te.checkpoint runs again under DelayedScaling quantises with later scales: another dgrad than without.

Written by hand. Two layers of the same weights and the same three steps, of which one runs each forward a second time
in its backward; their gradients must agree bit for bit. The module's do. Exit code 1 where they do not.
"""

import sys

import torch
import transformer_engine.pytorch as te
import transformer_engine.pytorch.ops as te_ops
from transformer_engine.common.recipe import DelayedScaling

G, K, N, TOKENS, STEPS = 2, 128, 128, 64, 3


def build(api):
    torch.manual_seed(0)
    if api == "module":
        return te.GroupedLinear(G, K, N, bias=False, params_dtype=torch.bfloat16, device="cuda")
    return te_ops.GroupedLinear(G, K, N, bias=False, dtype=torch.bfloat16, device="cuda")


def steps(api, again):
    """dgrad and wgrads of each step."""
    layer, recipe, seen = build(api), DelayedScaling(), []
    generator = torch.Generator("cuda").manual_seed(1)
    splits = [TOKENS] * G if api == "module" else torch.tensor([TOKENS] * G, device="cuda")
    for step in range(STEPS):
        x = torch.randn(G * TOKENS, K, device="cuda", generator=generator).mul(3.0**step).bfloat16().requires_grad_()
        grad = torch.randn(G * TOKENS, N, device="cuda", generator=generator).bfloat16()
        with te.autocast(enabled=True, recipe=recipe):
            y = te.checkpoint(layer, x, splits) if again else layer(x, splits)
        y.backward(grad)
        seen.append([y.detach(), x.grad, *(one.grad.clone() for one in layer.parameters())])
        layer.zero_grad()
    return seen


wrong = []
for api in ("module", "op"):
    for step, (plain, again) in enumerate(zip(steps(api, again=False), steps(api, again=True), strict=True)):
        for name, one, other in zip(("fprop", "dgrad", *(f"wgrad[{i}]" for i in range(G))), plain, again, strict=True):
            differ = int((one != other).sum())
            if differ:
                far = ((one.float() - other.float()).abs().max() / one.float().abs().max()).item()
                print(f"{api}, step {step}: {differ} of {one.numel()} elements of {name} differ, by up to {far:.3g} of the largest")
                wrong.append(f"{api} step {step} {name}")
print("FAULT:" if wrong else "ok", *wrong)
sys.exit(bool(wrong))
