"""Scripts that half-stored-weights must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)  # <- here
""",
    """\
import torch

model = torch.nn.Linear(4, 2).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # <- here
with torch.autocast('cuda', dtype=torch.bfloat16):
    y = model(x)
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
y = model(x)
""",
]
