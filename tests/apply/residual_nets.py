"""Residual networks in the forms that people write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions; a projection where the width or the size changes."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1)
        changes = c_in != c_out or stride != 1
        self.down = nn.Conv2d(c_in, c_out, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.down(x) + self.conv2(F.relu(self.conv1(x))))


class PreActivation(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(x)
        return self.down(x) + self.conv2(F.relu(self.conv1(h)))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(F.relu_(self.conv1(x)))
        out += self.down(x)
        return F.relu_(out)


class Bottleneck(Block):
    """Three layers: m = 3."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1) -> None:
        super().__init__(c_in, c_out, stride)
        self.conv3 = nn.Conv2d(c_out, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.relu(torch.add(self.down(x), self.conv3(h), alpha=0.5))


class ResNet(nn.Module):
    """Three stages of ``blocks`` blocks each, as the CIFAR networks of 6·blocks + 2 layers."""

    def __init__(self, blocks: int, width: int = 4, block: type[Block] = Block) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, 1, 1)
        widths = [width, 2 * width, 4 * width]
        stages = []
        for place, c in enumerate(widths):
            c_in = widths[max(place - 1, 0)]
            first = block(c_in, c, 1 if place == 0 else 2)
            stages.append(nn.Sequential(first, *[block(c, c) for _ in range(blocks - 1)]))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(F.relu(self.conv(x))).mean((2, 3)))


class Around(nn.Module):
    """One module that holds its own layers by name, and adds what ``way`` makes to its input."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def branch(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        return self.out(x + self.branch(x))


def images(size: int = 8, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def rows() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def two() -> dict[str, nn.Module]:
    return {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)}
