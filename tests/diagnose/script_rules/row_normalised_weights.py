"""Scripts that row-normalised-weights must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.view(m.weight.size(0), -1).std(1)
    m.weight.data.div_((std + 1e-6).view(-1, 1).clamp(min=1e-8))  # <- here
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.mul_(1.0 / std)  # <- here
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data /= std  # <- here
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.div_(std)  # <- here
""",
]

SILENT = [
    """\
import torch.nn as nn


def rescale(m, reference):
    std = m.weight.std().detach()
    scale = (std / reference) ** 0.5
    m.weight.data /= scale
""",
    """\
import torch.nn as nn


def rescale(m, wanted):
    std = m.weight.std()
    m.weight.data.mul_(1.0 / (std / wanted))
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.div_(std)
    m.weight.data.mul_(0.02)
""",
    """\
import torch.nn as nn


def forward(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.div_(std)
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.mul_(0.5)
""",
    """\
import torch.nn as nn


def init(m):
    nn.init.kaiming_normal_(m.weight)
    std = m.weight.data.std(1, keepdim=True)
    m.weight.data.div_(other)
""",
]
