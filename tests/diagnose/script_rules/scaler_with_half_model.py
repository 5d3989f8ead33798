"""Scripts that scaler-with-half-model must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch

model = torch.nn.Linear(4, 2)
model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)  # <- here
    scaler.update()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
model = model.to(torch.float16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)  # <- here
    scaler.update()
""",
]

SILENT = [
    """\
import torch

model = torch.nn.Linear(4, 2)
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
model = wrap(model.half())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    """\
import torch

model = torch.nn.Linear(4, 2)
model.half()
model.float()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
]
