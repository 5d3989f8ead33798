"""Scripts that unused-clip-factor must flag on the marked lines, and others."""

from __future__ import annotations

FIRING = [
    """\
import torch


def clip(params, max_norm):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in params:
            p.grad.mul_(0.1)  # <- here
    return norm
""",
    """\
import torch


def clip(params, max_norm):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = max_norm / (norm + 1e-6)  # <- here
    if factor < 1:
        for p in params:
            print(factor < 0.5)
    return norm
""",
    """\
import torch


def clip(params, limit):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    if norm > limit:
        for p in params:
            p.grad.mul_(0.1)  # <- here
""",
]

SILENT = [
    """\
import torch


def clip(params, max_norm):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in params:
            p.grad.mul_(factor)
    return norm
""",
    """\
import torch


def clip(params, max_norm):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in params:
            pass
    return factor
""",
    """\
import torch


def clip(params, max_norm):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in params:
            apply(p, factor)
    return norm
""",
    """\
import torch


def clip(params, limit):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / norm)
""",
]
