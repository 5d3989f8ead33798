"""Scripts that misnamed-fixup must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch.nn as nn


def fixup_init(m):
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight)  # <- here
        nn.init.zeros_(m.bias)


model.apply(fixup_init)
""",
]

SILENT = [
    """\
import torch.nn as nn


def kaiming_init(m):
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight)
        pass


model.apply(kaiming_init)
""",
    """\
import torch.nn as nn


def fixup_init(m):
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight)
        m.weight.data.mul_(depth ** -0.5)


model.apply(fixup_init)
""",
    """\
import torch.nn as nn


def fixup_init(m):
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight)
        pass


model.apply(fixup_init)
nn.init.zeros_(model.last.weight)
""",
]
