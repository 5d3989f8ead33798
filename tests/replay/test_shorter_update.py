"""A share of an update, judged by the loss of the step's own batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import recorded
from torch import nn

from fp16doctor.replay.shorter_update import SHARES, shorter_update
from fp16doctor.schema.tape import Tape

Optimizer = Callable[[nn.Linear], torch.optim.Optimizer]


def step(optimizer_of: Optimizer, scale: float) -> Tape:
    """A quadratic in one weight: w = 1, x = 2, y = 0; the loss is 4 w² and its gradient 8 w."""

    def training() -> object:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = optimizer_of(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        loss = model(torch.full((4, 1), 2.0)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model

    return recorded(training)[0]


def sgd(lr: float) -> Optimizer:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_the_first_share_that_lowers_the_loss_is_told(scale: float) -> None:
    """With lr 5 the weight goes from 1 to −39; a tenth takes it to −3, a hundredth to 0.6."""
    found = shorter_update(step(sgd(5.0), scale))
    assert found is not None
    assert found.ratio == pytest.approx(40.0)
    assert found.before == pytest.approx(4.0)
    assert found.share == 0.01
    assert found.after == pytest.approx(4 * 0.6**2)


def test_adam_moves_by_the_rate_whatever_the_gradient() -> None:
    """With lr 30 the weight goes from 1 to −29; a tenth takes it to −2, a hundredth to 0.7."""
    found = shorter_update(step(lambda m: torch.optim.Adam(m.parameters(), lr=30.0), 1.0))
    assert found is not None
    assert found.ratio == pytest.approx(30.0, rel=1e-4)
    assert found.share == 0.01
    assert found.after == pytest.approx(4 * 0.7**2, rel=1e-3)


def test_no_share_helps_an_update_that_climbs() -> None:
    def climbs(model: nn.Linear) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)

    found = shorter_update(step(climbs, 1.0))
    assert found is not None
    assert (found.share, found.after) == (None, None)
    assert min(SHARES) > 0
