"""case RAISED (AcceleratorError): fails 3 of 3, the variant with input_layout=contiguous passes 3 of 3.
te:api=op:input_layout=offset
Written and run by gradcheck 0.1.0: NVIDIA H200 (sm_90) · torch 2.11.0+cu130 · transformer_engine 2.17.1 · cuda 13.0 · cublaslt 13.5.1 · cudnn 9.14.0 · driver 580.159.04 · python 3.12.3."""
import os
os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
import torch
import transformer_engine.pytorch.ops as te_ops

G, K, N, DTYPE, DEVICE = 4, 64, 96, torch.bfloat16, "cuda"
SPLITS = [[32, 32, 32, 32], [24, 24, 24, 24]]  # tokens of each expert, by microbatch
torch.manual_seed(0)
def draw(*shape): return torch.randint(-2, 3, shape, device=DEVICE).to(DTYPE)
def off(t): return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)  # one element off alignment
layer = te_ops.GroupedLinear(G, K, N, bias=False, dtype=DTYPE, device=DEVICE)
weights = [getattr(layer, f"weight{i}") for i in range(G)]
for splits in SPLITS:
    x = off(draw(sum(splits), K)).requires_grad_()
    g = draw(sum(splits), N)
    y = layer(x, torch.tensor(splits, device=DEVICE))
    torch.cuda.synchronize()
    y.backward(g)
    torch.cuda.synchronize()
print("ok: it has come to its end")
