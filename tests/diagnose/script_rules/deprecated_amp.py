"""Scripts that deprecated-amp must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
from torch.cuda.amp import autocast

scaler = torch.cuda.amp.GradScaler(init_scale=8.0)  # <- here
with autocast():  # <- here
    y = model(x)
""",
    """\
import torch


class F(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd  # <- here
    def forward(ctx, x):
        return x
""",
]

SILENT = [
    """\
import torch

scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
with torch.autocast("cuda"):
    y = model(x)
""",
    """\
import torch.cuda

torch.cuda.empty_cache()
""",
    """\
import torch

if new:
    scaler = torch.amp.GradScaler("cuda")
else:
    scaler = torch.cuda.amp.GradScaler()
""",
    """\
try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler()
""",
]
