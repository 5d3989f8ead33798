"""Scripts that mask-fill-overflow must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(mask, -1e9)  # <- here
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores + (1.0 - mask) * torch.finfo(scores.dtype).min  # <- here
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
]

SILENT = [
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(mask, -1e4)
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(mask, float("-inf"))
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = (self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5).float()
        scores = scores.masked_fill(mask, -1e9)
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(mask, -1e9)
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.bfloat16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = x.sum(-1)
        scores = scores.masked_fill(mask, -1e9)
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
    """\
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        scores = scores * 1.0
        scores[mask] = -1e9
        return scores.softmax(-1)


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(x, mask)
""",
]
