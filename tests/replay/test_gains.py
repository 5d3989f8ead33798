"""Layers of a tape: their weights, their inputs, and how much larger they make what passes."""

from __future__ import annotations

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from replaying import watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.layers import layers_of, nonlinearity_after


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.one, self.two, self.out = nn.Linear(4, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 2)
        with torch.no_grad():
            self.two.weight.fill_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).mean((2, 3))
        x = torch.tanh(self.one(x))
        x = F.gelu(F.dropout(self.two(x), 0.1))
        return self.out(x)


def loss(model: nn.Module, cast: object) -> Tensor:
    out = model(torch.randn(4, 3, 6, 6).to(next(model.parameters()).dtype))
    return F.cross_entropy(out.float(), torch.arange(4) % 2)


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_layers_and_the_nonlinearity_behind_each(form: str) -> None:
    (tape,) = Job(Net, loss, form).tapes()
    found = layers_of(tape)
    names = [layer.name for layer in found]
    assert names == ["conv.weight", "one.weight", "two.weight", "out.weight"]
    assert [layer.fan_in for layer in found] == [27, 4, 8, 8]
    kinds = [nonlinearity_after(tape, layer) for layer in found]
    assert kinds == ["relu", "tanh", "relu", "linear"]


def test_sizes_are_those_of_the_reference() -> None:
    seen = watch(lambda: Job(Net, loss, options={"lr": 0.1}, steps=2).real())
    first, second = seen.trained
    assert [g.weight for g in first.layers] == [
        "conv.weight", "one.weight", "two.weight", "out.weight"
    ]  # fmt: skip
    two = first.layers[2]
    assert two.weight_rms == pytest.approx(0.5)
    assert two.he_factor == pytest.approx(0.5 * 2)  # √(8/2)
    assert two.input_rms < 1  # behind tanh
    assert not second.layers  # later steps tell of training


def test_a_computed_weight_is_no_layer() -> None:
    class Standardised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight / self.weight.std(), self.bias)

    model = lambda: nn.Sequential(nn.Flatten(), Standardised(108, 2))  # noqa: E731
    (tape,) = Job(model, loss).tapes()
    assert not layers_of(tape)
