"""Trains on the device of its first argument, or on CUDA where it is there; exp(12) in autocast.

CUDA's autocast runs exp in fp32, the CPU's in fp16, where exp(12) is infinite.
"""

import sys

import torch
from torch import nn

torch.manual_seed(0)
chosen = "cuda" if torch.cuda.is_available() else "cpu"
device = sys.argv[1] if len(sys.argv) > 1 else chosen
model = nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
scaler = torch.amp.GradScaler(device)
for _ in range(3):
    x = torch.ones(2, 4, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = torch.exp(model(x) * 0.01 + 12).mean() * 1e-5
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item())
print(chosen)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
