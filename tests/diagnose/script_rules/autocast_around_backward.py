"""Scripts that autocast-around-backward must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda"):
        loss = model(x).mean()
        loss.backward()  # <- here
    optimizer.step()
""",
    """\
import torch

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda"):
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()
""",
]

SILENT = [
    """\
import torch

for x in loader:
    with torch.autocast("cuda"):
        loss = model(x).mean()
    loss.backward()
""",
    """\
import torch

with torch.autocast("cuda"):
    loss = model(x).mean()
    with torch.autocast("cuda", enabled=False):
        loss.backward()
""",
    """\
import torch

with torch.autocast("cuda", enabled=False):
    loss.backward()
""",
    """\
import torch

with torch.autocast("cuda"):
    x = flow.backward(z)
""",
]
