"""Integers that 16 bits cannot hold, told from indices that rounding has moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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


def floating(h: Tensor) -> Tensor:
    return torch.arange(len(h), dtype=torch.float32).to(HALF)


def running_count(h: Tensor) -> Tensor:
    """Which place each row takes among those of its kind."""
    return torch.ones(len(h), dtype=HALF).cumsum(0)


def whole_data(h: Tensor) -> Tensor:
    """Measurements that are integers, and far from one another."""
    return (torch.linspace(0.0, 1.0, len(h)) ** 3 * 1e5).round().to(HALF)


def running_sum(h: Tensor) -> Tensor:
    return torch.linspace(0.1, 0.9, len(h)).to(HALF).cumsum(0)


@pytest.mark.parametrize("positions", [floating, running_count])
def test_positions_that_are_floating_point_numbers(
    positions: Callable[[Tensor], Tensor],
) -> None:
    (found,) = losses(positions)
    assert found.collisions > 100


@pytest.mark.parametrize("positions", [whole_data, running_sum])
def test_data_are_no_positions(positions: Callable[[Tensor], Tensor]) -> None:
    assert not losses(positions)


def test_an_index_that_rounding_moved() -> None:
    assert not losses(moved)
