"""Scripts that unguarded-bias must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch.nn as nn

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 2))
for m in model.modules():
    if isinstance(m, nn.Conv2d):
        m.bias.data.zero_()  # <- here
""",
    """\
import torch.nn as nn

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 2))
for m in model.modules():
    if isinstance(m, nn.Conv2d):
        nn.init.zeros_(m.bias)  # <- here
""",
]

SILENT = [
    """\
from torch import nn


class Net(nn.Module):
    def __init__(self, n):
        self.body = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, n) if n > 0 else nn.Identity()
        if isinstance(self.head, nn.Linear):
            self.head.bias.data.mul_(0.1)

    def replace_head(self, new_head):
        self.head = new_head
""",
    """\
import torch.nn as nn

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=True), nn.Linear(8, 2))
for m in model.modules():
    if isinstance(m, nn.Conv2d):
        m.bias.data.zero_()
""",
    """\
import torch.nn as nn

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 2))
for m in model.modules():
    if isinstance(m, nn.Conv2d):
        if m.bias is not None:
            m.bias.data.zero_()
""",
    """\
import torch.nn as nn

model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 2))
for m in model.modules():
    if isinstance(m, nn.Linear):
        m.bias.data.zero_()
""",
]
