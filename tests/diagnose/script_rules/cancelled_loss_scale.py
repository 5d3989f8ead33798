"""Scripts that cancelled-loss-scale must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    (loss * (1.0 / scale)).backward()  # <- here
    optimizer.step()
""",
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    (loss / scale).backward()  # <- here
    optimizer.step()
""",
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    (loss * 0.0078125).backward()  # <- here
    optimizer.step()
""",
]

SILENT = [
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    (loss / 4).backward()
    optimizer.step()
""",
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = 2.0 * loss * model(x).float().mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """\
import torch

scale = 128.0
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).float().mean() * scale
    optimizer.zero_grad()
    (loss / scale).backward()
    optimizer.step()
""",
]
