"""Scripts that apex-amp must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
from apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")  # <- here
for x in loader:
    loss = model(x)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
""",
    """\
from apex import amp

model = amp.initialize(model, opt_level=level)  # <- here
""",
]

SILENT = [
    """\
import torch
from torch import amp

amp.initialize(model)
""",
    """\
from apex.normalization import FusedLayerNorm
""",
]
