"""Scripts that half-optimizer must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters()).half()  # <- here
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
print("made")
optimizer.half()  # <- here
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.Adam(model.parameters(), eps=1e-3)
""",
    """\
import torch

optimizer = make()
optimizer.half()
""",
]
