"""wgrad MISSING (none): fails 3 of 3, the variant with single_grouped_weight=0 passes 3 of 3.
te:api=module:single_grouped_weight=1:num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:microbatches=1
Written and run by gradcheck 0.1.0: NVIDIA H200 (sm_90) · torch 2.11.0+cu130 · transformer_engine 2.17.1 · cuda 13.0 · cublaslt 13.5.1 · cudnn 9.14.0 · driver 580.159.04 · python 3.12.3."""
import os
os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
import sys
import torch
import transformer_engine.pytorch as te

torch.manual_seed(0)
layer = te.GroupedLinear(
    num_gemms=2, in_features=16, out_features=32, bias=False, params_dtype=torch.bfloat16,
    device="cuda", single_grouped_weight=True,
)
weights = [layer.weight]
x = torch.randn(8, 16, dtype=torch.bfloat16, device="cuda").requires_grad_()
y = layer(x, [4, 4])
y.backward(torch.randn_like(y))

print("input.grad:", "None" if x.grad is None else "arrived")
for i, p in enumerate(weights):
    print(f"weight {i}: .grad", "None" if p.grad is None else "arrived")
wrong = [i for i, p in enumerate(weights) if p.grad is None]
print(f"FAULT: wgrad is missing: weights {wrong}" if wrong else "ok")
sys.exit(bool(wrong))
