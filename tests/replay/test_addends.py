"""A faint value that is only added where the sum is as coarse loses nothing that can be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from replaying import watch
from torch import Tensor, nn

FAINT = 3e-6


class Net(nn.Module):
    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.use = nn.Parameter(torch.ones(8)), use

    def forward(self, x: Tensor) -> Tensor:
        small = (self.weight * FAINT).half()
        return self.use(x.half(), small)


def exposed(use: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> float:
    def step() -> None:
        net = Net(use)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        net(x).float().sum().backward()
        opt.step()

    (trace,) = watch(step).trained
    assert trace.precision is not None
    return next(o.exposed_share for o in trace.precision.ops if o.subnormal_share == 1)


LARGE = torch.full((4, 8), 0.5)
ADDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, small: x + small,
    "second": lambda x, small: small + x,
    "subtracted": lambda x, small: x - small,
    "in place": lambda x, small: x.clone().add_(small),
    "as a view": lambda x, small: x + small[None].expand(4, 8),
    "bias": lambda x, small: torch.addmm(small, x, torch.eye(8).half()),
    "linear": lambda x, small: nn.functional.linear(x, torch.eye(8).half(), small),
}
USED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, small: x * small,
    "matrix product": lambda x, small: x @ small,
    "to itself": lambda x, small: x + (small + small),
    "also alone": lambda x, small: (x + small) * small,
    "finer sum": lambda x, small: x.float() * 0.1 + small,
    "scaled": lambda x, small: torch.add(x, small, alpha=2.0),
}


@pytest.mark.parametrize("name", ADDED)
def test_an_addend_beside_something_normal(name: str) -> None:
    assert exposed(ADDED[name], LARGE) == 0


@pytest.mark.parametrize("name", USED)
def test_any_other_use(name: str) -> None:
    assert exposed(USED[name], LARGE) == 1


@pytest.mark.parametrize("name", ADDED)
def test_a_sum_that_is_faint_itself(name: str) -> None:
    assert exposed(ADDED[name], LARGE * 1e-5) == 1


def test_the_share_of_the_faint_value_is_taken() -> None:
    x = LARGE * torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    assert exposed(ADDED["add"], x) == pytest.approx(0.25)


def test_the_bias_of_a_convolution() -> None:
    def conv(x: Tensor, small: Tensor) -> Tensor:
        image = x.t().reshape(1, 8, 2, 2)
        weight = torch.eye(8).half().reshape(8, 8, 1, 1)
        return nn.functional.conv2d(image, weight, small)

    assert exposed(conv, LARGE) == 0
