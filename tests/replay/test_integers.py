"""Integers that 16 bits cannot hold, told from indices that rounding has moved."""

from __future__ import annotations

import torch
from replaying import watch
from torch import Tensor, nn

from fp16doctor.schema.precision import IntegerLoss

HALF = torch.bfloat16


def losses(positions: object) -> tuple[IntegerLoss, ...]:
    model = nn.Linear(1, 1)

    def train() -> object:
        h = model(torch.linspace(0.9999, 1.0, 700)[:, None])
        (h * positions(h).float()).mean().backward()  # type: ignore[operator]
        return model

    (trace,) = watch(train).traces
    assert trace.precision is not None
    return trace.precision.integers


def counted(h: Tensor) -> Tensor:
    return torch.arange(len(h)).to(HALF)


def moved(h: Tensor) -> Tensor:
    """In bf16 all scores are one and the first wins; in fp32 the last or the first does."""
    best = torch.stack([h.to(HALF).argmax(), (-h).to(HALF).argmax()])
    return best.to(HALF)


def test_positions_collide() -> None:
    (found,) = losses(counted)
    assert found.collisions > 100


def test_an_index_that_rounding_moved() -> None:
    assert not losses(moved)
