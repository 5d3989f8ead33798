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
    """\
import torch

ema = {k: v.detach().to(torch.bfloat16) for k, v in model.state_dict().items()}
for x in loader:
    for k, v in model.state_dict().items():
        ema[k].mul_(0.99).add_(v, alpha=0.01)  # <- here
""",
    """\
import torch

ema = [p.detach().clone().half() for p in model.parameters()]
for x in loader:
    for e, p in zip(ema, model.parameters()):
        e.lerp_(p.half(), 0.01)  # <- here
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
    """\
import torch

ema = [p.detach().clone() for p in model.parameters()]
for x in loader:
    for e, p in zip(ema, model.parameters()):
        e.lerp_(p.half(), 0.01)
""",
]
