"""Scripts that scaler-made-in-loop must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

for x in loader:
    scaler = torch.amp.GradScaler("cuda")  # <- here
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
]

SILENT = [
    """\
import torch

for x in loader:
    if x is None:
        scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    """\
import torch

for epoch in range(3):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale(model(x)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
]
