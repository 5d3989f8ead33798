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
