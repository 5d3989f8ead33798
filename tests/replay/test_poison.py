"""Inf and NaN that a step is given: where they are, and whether they reach anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import watch
from torch import Tensor, nn

from fp16doctor.schema.trace import ReplayTrace

NAN, INF = float("nan"), float("inf")


def step(batch: Tensor, loss: Callable[[Tensor, Tensor], Tensor], weight: float = 0.5) -> Any:
    def run() -> Any:
        model = nn.Linear(3, 1)
        nn.init.constant_(model.weight, weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(batch), batch).backward()
        optimizer.step()
        return optimizer

    (trace,) = watch(run).trained
    return trace


def test_a_nan_in_the_batch_reaches_the_parameters() -> None:
    trace: ReplayTrace = step(
        torch.tensor([[1.0, NAN, 1.0], [1.0, 1.0, 1.0]]), lambda y, x: y.sum()
    )
    (poison,) = trace.poisons
    assert (poison.is_batch, poison.nan, poison.name) == (True, True, None)
    assert set(poison.reaches) == {"loss", "gradients", "parameters"}
    assert not trace.events


def test_a_parameter_is_named() -> None:
    trace = step(torch.ones(2, 3), lambda y, x: y.sum(), weight=NAN)
    (poison,) = trace.poisons
    assert (poison.is_parameter, poison.name) == (True, "weight")
    assert "loss" in poison.reaches


@pytest.mark.parametrize("value", [NAN, -INF])
def test_what_a_mask_takes_out_reaches_nothing(value: float) -> None:
    extra = torch.tensor([[value], [1.0]])

    def loss(y: Tensor, x: Tensor) -> Tensor:
        return (y + torch.where(torch.isfinite(extra), extra * 1.5, torch.zeros(()))).sum()

    trace = step(torch.ones(2, 3), loss)
    assert all(p.reaches == () and not p.left for p in trace.poisons)


def test_a_sound_step_is_given_nothing() -> None:
    assert step(torch.ones(2, 3), lambda y, x: y.sum()).poisons == ()
