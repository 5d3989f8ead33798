"""Scripts that cleared-before-step must flag on the marked lines, and others."""

from __future__ import annotations

HEAD = """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""

FIRING = [
    HEAD
    + """\
for x in loader:
    scaler.scale(model(x).sum()).backward()
    optimizer.zero_grad()  # <- here
    scaler.step(optimizer)
    scaler.update()
""",
    HEAD
    + """\
for x in loader:
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad(set_to_none=False)  # <- here
    optimizer.step()
""",
]

SILENT = [
    HEAD
    + """\
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    HEAD
    + """\
for i, x in enumerate(loader):
    scaler.scale(model(x).sum()).backward()
    if i % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    HEAD
    + """\
def closure(x):
    loss = model(x).sum()
    loss.backward()
    return loss

for x in loader:
    model(x).sum().backward()
    optimizer.zero_grad()
    closure(x)
    optimizer.step()
""",
    HEAD
    + """\
for x in loader:
    model(x).sum().backward()
    kept = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    for p, g in zip(model.parameters(), kept):
        p.grad = g / 2
    optimizer.step()
""",
    HEAD
    + """\
other = torch.optim.SGD(critic.parameters(), lr=0.1)
for x in loader:
    model(x).sum().backward()
    other.zero_grad()
    optimizer.step()
    critic(x).sum().backward()
    other.step()
""",
]
