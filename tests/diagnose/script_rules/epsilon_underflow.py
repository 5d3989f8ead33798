"""Scripts that epsilon-underflow must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- here
""",
    """\
import torch

model = torch.nn.Linear(4, 2).to(torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), eps=1e-9)  # <- here
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).bfloat16()
optimizer = torch.optim.Adam(model.parameters())
""",
    """\
import torch

model = torch.nn.Linear(4, 2).half()
master = [p.float() for p in weights]
optimizer = torch.optim.Adam(master, lr=1e-3)
""",
]
