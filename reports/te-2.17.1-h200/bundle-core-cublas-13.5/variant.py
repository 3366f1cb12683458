import os
os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"
import sys
import torch
import transformer_engine.pytorch as te

G, K, N, DTYPE, DEVICE = 1, 1, 1, torch.bfloat16, "cuda"
SPLITS = [[1]]  # tokens of each expert, by microbatch
torch.manual_seed(0)
def draw(*shape): return torch.randint(-2, 3, shape, device=DEVICE).to(DTYPE)
layer = te.GroupedLinear(G, K, N, bias=False, params_dtype=DTYPE, device=DEVICE)
weights = [getattr(layer, f"weight{i}") for i in range(G)]
expected = torch.full((G, N, K), 0.0, device=DEVICE, dtype=torch.float64)
for splits in SPLITS:
    x = draw(sum(splits), K).requires_grad_()
    g = draw(sum(splits), N)
    y = layer(x, splits)
    y.backward(g)
    for i, (xi, gi) in enumerate(zip(x.detach().double().split(splits), g.double().split(splits))):
        expected[i] += gi.T @ xi
def state(t): return "None" if t is None else f"{tuple(t.shape)} {t.dtype}, largest {t.abs().max():.4g}"
print("input.grad:", state(x.grad))
for i, p in enumerate(weights):
    print(f"weight {i}: .grad", state(p.grad))
found = [p.grad for p in weights]
wrong = [i for i in range(G) if found[i] is None or not torch.equal(found[i].double(), expected[i])]
print("FAULT: wgrad is not what it must be: experts" if wrong else "ok", wrong or "")
sys.exit(bool(wrong))
