"""case RAISED (RuntimeError): fails 3 of 3, the variant with bias=0 passes 3 of 3.
te:api=op:dtype=fp32:recipe=DelayedScaling:bias=1:m_splits=128,256:in_features=128:out_features=128:microbatches=1
Written and run by gradcheck 0.1.0: NVIDIA H200 (sm_90) · torch 2.11.0+cu130 · transformer_engine 2.20.2 · cuda 13.0 · cublaslt 13.5.1 · cudnn 9.14.0 · driver 580.159.04 · python 3.12.3."""
import os
os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
import torch
from transformer_engine.common.recipe import DelayedScaling
import transformer_engine.pytorch as te
import transformer_engine.pytorch.ops as te_ops

G, K, N, DTYPE, DEVICE = 2, 128, 128, torch.float32, "cuda"
SPLITS = [[128, 256]]  # tokens of each expert, by microbatch
torch.manual_seed(0)
def draw(*shape): return torch.randint(-2, 3, shape, device=DEVICE).to(DTYPE)
recipe = DelayedScaling()
layer = te_ops.GroupedLinear(G, K, N, bias=True, dtype=DTYPE, device=DEVICE)
weights = [getattr(layer, f"weight{i}") for i in range(G)]
biases = [getattr(layer, f"bias{i}") for i in range(G)]
def quantised(*given, **named):
    with te.autocast(enabled=True, recipe=recipe): return layer(*given, **named)
for splits in SPLITS:
    x = draw(sum(splits), K).requires_grad_()
    g = draw(sum(splits), N)
    y = quantised(x, torch.tensor(splits, device=DEVICE))
    torch.cuda.synchronize()
    y.backward(g)
    torch.cuda.synchronize()
print("ok: it has come to its end")
