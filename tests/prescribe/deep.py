"""A residual network whose branches overflow as strongly as wanted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Branch(nn.Module):
    """Its product passes 65504 where ``gain`` is large, and leaves it small again."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.down, self.gain = nn.Linear(8, 8), gain

    def forward(self, x: Tensor) -> Tensor:
        return self.down(x) * self.gain / max(self.gain, 1.0)


class Deep(nn.Module):
    def __init__(self, *gains: float) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Branch(g) for g in gains)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def classified(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    return F.cross_entropy(model(cast(x)).float(), y)
