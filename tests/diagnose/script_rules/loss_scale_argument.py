"""Scripts that loss-scale-argument must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, loss_scale=128.0)  # <- here
""",
]

SILENT = [
    """\
import torch
from apex.fp16_utils import FP16_Optimizer

model = torch.nn.Linear(4, 2)
optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), static_loss_scale=128.0)
""",
]
