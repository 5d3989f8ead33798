"""Small training loops of every kind; each returns what it computed, to be compared bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Trace = dict[str, Any]
STEPS = 3


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6), torch.randint(0, 3, (4,))


def bits(*modules: nn.Module, losses: list[float]) -> Trace:
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
    return {"losses": losses, "states": states, "rng": torch.get_rng_state()}


def fp32() -> Trace:
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return bits(model, losses=losses)


def bf16_autocast() -> Trace:
    model, losses = nn.Sequential(net(), nn.LayerNorm(3)), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return bits(model, losses=losses)


def fp16_scaler(init_scale: float = 2.0**10) -> Trace:
    """Dropout, BatchNorm, clipping, a GradScaler."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    losses = []
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return bits(model, losses=[*losses, scaler.get_scale()])


def skipped_steps() -> Trace:
    """A scale at which every gradient overflows at first."""
    return fp16_scaler(init_scale=2.0**26)


def accumulation() -> Trace:
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for i in range(2 * STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return bits(model, losses=losses)


def two_optimizers() -> Trace:
    body, head, losses = nn.Linear(6, 8), nn.Linear(8, 3), []
    first = torch.optim.SGD(body.parameters(), lr=0.1)
    second = torch.optim.RMSprop(head.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(head(torch.tanh(body(x))), y)
        first.zero_grad()
        second.zero_grad()
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    return bits(body, head, losses=losses)


def lbfgs() -> Trace:
    model, losses = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    x, y = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        losses.append(optimizer.step(closure).item())
    return bits(model, losses=losses)


def sam() -> Trace:
    """Two passes a step: climb a little, then step down from there."""

    class SAM(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"rho": 0.05})
            self.base = torch.optim.SGD(self.param_groups, lr=0.1)

        @torch.no_grad()
        def first_step(self) -> None:
            for p in self.param_groups[0]["params"]:
                self.state[p]["e"] = p.grad * 0.05
                p.add_(self.state[p]["e"])
            self.zero_grad()

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                p.sub_(self.state[p]["e"])
            self.base.step()
            self.zero_grad()

    model, losses = net(), []
    optimizer = SAM(list(model.parameters()))
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        losses.append(loss.item())
    return bits(model, losses=losses)


def by_hand() -> Trace:
    """No optimizer, half of the updates through ``.data``."""
    model, losses = net(), []
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                (p.data if i % 2 else p).sub_(0.1 * p.grad)
        losses.append(loss.item())
    return bits(model, losses=losses)


def functional() -> Trace:
    """No modules at all."""
    w = torch.randn(6, 3, requires_grad=True)
    optimizer, losses = torch.optim.SGD([w], lr=0.1), []
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(x @ w, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "states": [{"w": w.detach().clone()}], "rng": torch.get_rng_state()}
