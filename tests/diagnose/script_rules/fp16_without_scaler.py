"""Scripts that fp16-without-scaler must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()  # <- here
    optimizer.step()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda"):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()  # <- here
    optimizer.step()
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda", dtype=dtype):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda"):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()
    model.weight.grad.div_(8)
    optimizer.step()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda"):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    fabric.scaler = 1
    loss.backward()
    optimizer.step()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with torch.autocast("cuda", enabled=False):
        out = model(x)
    loss = out.float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
]
