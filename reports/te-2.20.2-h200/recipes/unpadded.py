"""wgrad INEXACT: fails 3 of 3, the variant with m_splits=balanced passes 3 of 3.
te:api=module:path=native:recipe=Float8CurrentScaling:m_splits=17,40:in_features=128:out_features=128:microbatches=1
Written and run by gradcheck 0.1.0: NVIDIA H200 (sm_90) · torch 2.11.0+cu130 · transformer_engine 2.20.2 · cuda 13.0 · cublaslt 13.5.1 · cudnn 9.14.0 · driver 580.159.04 · python 3.12.3."""
import os
os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
import sys
import torch
from transformer_engine.common.recipe import Float8CurrentScaling
import transformer_engine.pytorch as te

G, K, N, DTYPE, DEVICE = 2, 128, 128, torch.bfloat16, "cuda"
SPLITS = [[17, 40]]  # tokens of each expert, by microbatch
torch.manual_seed(0)
def draw(*shape): return torch.randint(-2, 3, shape, device=DEVICE).to(DTYPE)
def state(t): return "None" if t is None else f"{tuple(t.shape)} {t.dtype}, largest {t.abs().max():.4g}"
recipe = Float8CurrentScaling()
layer = te.GroupedLinear(num_gemms=G, in_features=K, out_features=N, bias=False, params_dtype=DTYPE, device=DEVICE, use_grouped_tensor=True)
weights = [getattr(layer, f"weight{i}") for i in range(G)]
def quantised(*given, **named):
    with te.autocast(enabled=True, recipe=recipe): return layer(*given, **named)
expected = torch.full((G, N, K), 0.0, device=DEVICE, dtype=torch.float64)
for splits in SPLITS:
    x = draw(sum(splits), K).requires_grad_()
    g = draw(sum(splits), N)
    y = quantised(x, torch.tensor(splits, device=DEVICE))
    y.backward(g)
    for i, (xi, gi) in enumerate(zip(x.detach().double().split(splits), g.double().split(splits))):
        expected[i] += gi.T @ xi
print("input.grad:", state(x.grad))
for i, p in enumerate(weights):
    print(f"weight {i}: .grad", state(p.grad))
found = [p.grad for p in weights]
wrong = [i for i in range(G) if found[i] is None or not torch.equal(found[i].double().round(), expected[i])]
for i in wrong[:1]:
    at = (found[i] - expected[i]).abs().argmax()
    print(f"expert {i}, where they differ most: expected {expected[i].flatten()[at]:.8g}, found {found[i].flatten()[at]:.8g}")
assert (expected != 0.0).any()  # or nothing could be seen
print("FAULT: wgrad is not what it must be: experts" if wrong else "ok", wrong or "")
sys.exit(bool(wrong))
