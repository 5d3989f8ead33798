"""Whether an optimizer's step shrinks with the gradient, read off its ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import watch
from torch import nn

from fp16doctor.replay.update_floor import update_floor


@pytest.mark.parametrize(
    ("kind", "settings", "floor"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, None),
        (torch.optim.Adam, {}, 1e-8),
        (torch.optim.AdamW, {"foreach": False, "eps": 1e-6}, 1e-6),
        (torch.optim.AdamW, {"foreach": True, "eps": 1e-5}, 1e-5),
        (torch.optim.AdamW, {"fused": True, "eps": 1e-7}, 1e-7),
        (torch.optim.RMSprop, {}, 1e-8),
        (torch.optim.Rprop, {}, 0.0),
    ],
)
def test_floor_of_an_optimizer(kind: Any, settings: dict[str, Any], floor: float | None) -> None:
    def run() -> None:
        model = nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1, **settings)
        model(torch.ones(2, 3)).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # adds 1e-6 to a norm
        optimizer.step()

    (tape,) = watch(run, look=lambda tape: None).tapes
    assert update_floor(tape) == floor
