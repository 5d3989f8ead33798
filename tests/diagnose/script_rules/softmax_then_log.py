"""Scripts that softmax-then-log must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = F.softmax(z, dim=-1)
    loss = F.nll_loss(torch.log(p), y)  # <- here
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = z.softmax(-1)
    loss = F.nll_loss(p.gather(1, i).log(), y)  # <- here
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = F.softmax(z, dim=-1)
    loss = F.nll_loss(torch.log(p + 1e-8), y)  # <- here
""",
]

SILENT = [
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = F.softmax(z.float(), dim=-1)
    loss = F.nll_loss(torch.log(p), y)
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = F.log_softmax(z, dim=-1)
    loss = F.nll_loss(p, y)
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = f(z)
    loss = F.nll_loss(torch.log(p), y)
""",
    """\
import torch
import torch.nn.functional as F

with torch.autocast("cpu", dtype=torch.float16):
    p = z.float().softmax(-1)
    loss = F.nll_loss(p.log(), y)
""",
]
