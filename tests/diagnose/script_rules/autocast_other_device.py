"""Scripts that autocast-other-device must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2).cuda()
with torch.autocast("cpu", dtype=torch.bfloat16):  # <- here
    y = model(x)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).to("cuda:0")
with torch.autocast("cpu"):  # <- here
    y = model(x)
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
with torch.autocast("cuda", dtype=torch.float16):  # <- here
    y = model(x)
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2).cuda()
with torch.autocast("cuda"):
    y = model(x)
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
with torch.autocast("cpu"):
    y = model(x)
""",
    """\
import torch

model = torch.nn.Linear(4, 2).to(device)
with torch.autocast("cuda"):
    y = model(x)
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
prepare(model)
with torch.autocast("cuda"):
    y = model(x)
""",
    """\
import torch

torch.set_default_device("cuda")
import torch

model = torch.nn.Linear(4, 2)
with torch.autocast("cuda"):
    y = model(x)
""",
]
