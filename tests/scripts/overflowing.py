"""Trains in fp16 with activations that leave the format's range at the third step.

Argument: how to end, "quietly" or "raising".
"""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 16).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(5):
    inputs = torch.ones(4, 16, dtype=torch.half) * (300.0 if step == 2 else 1.0)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.4g}", flush=True)
    if sys.argv[1] == "raising" and not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()} at step {step}")
