"""An attention with rotary positions, stored in 16 bits; its products stand in its own forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Rotary(nn.Module):
    """Buffers and no parameters; positions beyond 256 collide in bf16."""

    inv_freq: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10.0 ** -torch.arange(0, width, 2).div(width))

    def forward(self, n: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(500, 500 + n).type_as(self.inv_freq)
        angles = torch.outer(at, self.inv_freq)
        both = torch.cat((angles, angles), -1)
        return both.cos(), both.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary(8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.rotary(x.shape[-2])
        q, k = turned(self.query(x), cos, sin), turned(self.key(x), cos, sin)
        att = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.head(att @ self.value(x))


class Fused(Attention):
    """The same by torch's own attention."""

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.rotary(x.shape[-2])
        q, k = turned(self.query(x), cos, sin), turned(self.key(x), cos, sin)
        v = self.value(x)[:, None]
        return self.head(F.scaled_dot_product_attention(q[:, None], k[:, None], v)[:, 0])


class Cast(Attention):
    """The cast stands in the script already, as the text asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.rotary(x.shape[-2])
        q, k = turned(self.query(x), cos, sin), turned(self.key(x), cos, sin)
        att = torch.softmax(q @ k.transpose(-1, -2), -1)
        return self.head(att.to(torch.bfloat16) @ self.value(x))
