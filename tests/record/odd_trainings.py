"""Training loops with a twist: checkpoints, custom functions, GANs, averages, recurrent nets."""

from __future__ import annotations

import copy
from typing import Any

import torch
from plain_trainings import STEPS, Trace, batch, bits, net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def checkpointed(reentrant: bool) -> Trace:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(2))
    head, losses = nn.Linear(6, 3), []
    optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1)
    for _ in range(STEPS):
        x, y = batch()
        h = x.requires_grad_()
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=reentrant)
        loss = F.cross_entropy(head(h), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return bits(blocks, head, losses=losses)


def checkpoint_reentrant() -> Trace:
    return checkpointed(True)


def checkpoint_not_reentrant() -> Trace:
    return checkpointed(False)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def custom_function() -> Trace:
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(Square.apply(model(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return bits(model, losses=losses)


def wgan_gp() -> Trace:
    maker, critic, losses = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh()), []
    critic.append(nn.Linear(8, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    for _ in range(STEPS):
        real, fake = torch.randn(4, 6), maker(torch.randn(4, 4))
        mixed = (0.5 * real + 0.5 * fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake.detach()).mean() - critic(real).mean()
        loss = loss + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        made = -critic(fake).mean()
        of_maker.zero_grad()
        made.backward()
        of_maker.step()
        losses += [loss.item(), made.item()]
    return bits(maker, critic, losses=losses)


def ema_and_evaluation() -> Trace:
    model, losses = nn.Sequential(net(), nn.BatchNorm1d(3)), []
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
            for _ in range(2):
                x, y = batch()
                losses.append(F.cross_entropy(average(x), y).item())
        losses.append(loss.item())
    return bits(model, average, losses=losses)


def lstm() -> Trace:
    model, head, losses = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3), []
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
    for _ in range(STEPS):
        x, y = torch.randn(4, 6, 5), torch.randint(0, 3, (4,))
        out, _ = model(x)
        loss = F.cross_entropy(head(out[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return bits(model, head, losses=losses)
