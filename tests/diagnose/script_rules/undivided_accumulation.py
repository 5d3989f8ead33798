"""Scripts that undivided-accumulation must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # <- here
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()  # <- here
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
""",
]

SILENT = [
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y, reduction="sum")
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = model(x).loss
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    """\
import torch
import torch.nn.functional as F

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if True:
        optimizer.step()
        optimizer.zero_grad()
""",
]
