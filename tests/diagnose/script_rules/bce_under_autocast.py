"""Scripts that bce-under-autocast must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


net = Net()
bce = nn.BCELoss()
with torch.autocast("cuda"):
    loss = bce(net(x), y)  # <- here
""",
    """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


net = Net()
bce = nn.BCELoss()
with torch.autocast("cpu", dtype=torch.float16):
    loss = bce(net(x), y)  # <- here
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cuda"):
    loss = F.binary_cross_entropy(torch.sigmoid(z), y)  # <- here
""",
]

SILENT = [
    """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


net = Net()
bce = nn.BCELoss()
with torch.autocast("cpu", dtype=torch.float16):
    loss = bce(net(x).float(), y)
""",
    """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


net = Net()
bce = nn.BCELoss()
with torch.autocast("cuda", enabled=False):
    loss = bce(net(x), y)
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cuda"):
    loss = F.binary_cross_entropy_with_logits(z, y)
""",
]
