"""Scripts that half-accumulation must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import copy
import torch


class Ema:
    def __init__(self, model, dtype):
        self.shadow = copy.deepcopy(model).to(dtype)

    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)  # <- here


model = torch.nn.Linear(4, 2)
ema = Ema(model, torch.bfloat16)
""",
    """\
import copy
import torch


class Ema:
    def __init__(self, model, dtype):
        self.shadow = copy.deepcopy(model).half()

    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)  # <- here


model = torch.nn.Linear(4, 2)
ema = Ema(model, torch.bfloat16)
""",
    """\
import torch

total = torch.zeros(3, dtype=torch.float16)
for x in loader:
    total += x  # <- here
""",
]

SILENT = [
    """\
import copy
import torch


class Ema:
    def __init__(self, model, dtype):
        self.shadow = copy.deepcopy(model)

    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)


model = torch.nn.Linear(4, 2)
ema = Ema(model, torch.bfloat16)
""",
    """\
import copy
import torch


class Ema:
    def __init__(self, model, dtype):
        self.shadow = copy.deepcopy(model).to(torch.float32)

    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)


model = torch.nn.Linear(4, 2)
ema = Ema(model, torch.bfloat16)
""",
    """\
import torch

total = torch.zeros(3)
for x in loader:
    total += x.half()
""",
    """\
import torch

total = torch.zeros(3, dtype=torch.float16)
total += bias
""",
    """\
import torch

for x in loader:
    total = torch.zeros(3, dtype=torch.float16)
    total += x
""",
]
