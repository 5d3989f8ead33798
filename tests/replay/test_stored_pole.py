"""A pole that a 16-bit tensor held before the step: no replay has the number it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import line, line_of, watch
from torch import Tensor, nn

from fp16doctor.schema.trace import Event, EventKind

FP16, BF16 = torch.float16, torch.bfloat16


class Weighted(nn.Module):
    """Divides by what a stored share leaves of 1, or takes its logarithm."""

    def __init__(self, share: Tensor, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, dtype=share.dtype))
        self.register_buffer("share", share)
        self.how = how

    def forward(self) -> Tensor:
        return self.how(self.w, self.share).sum()


def quotient(w: Tensor, share: Tensor) -> Tensor:
    return w / (1 - share[torch.tensor([0, 1, 0])]).sqrt()


def power(w: Tensor, share: Tensor) -> Tensor:
    return w / (1 - share**3)[:3]


def logarithm(w: Tensor, share: Tensor) -> Tensor:
    return w * torch.log(share[:3] - 1.0).abs()


def above_zero(w: Tensor, share: Tensor) -> Tensor:
    return w / share[:3]


def of_two(w: Tensor, share: Tensor) -> Tensor:
    return w / (w - share[:3])


def born(share: Tensor, how: Callable[[Tensor, Tensor], Tensor]) -> Event:
    def run() -> Any:
        model = Weighted(share, how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model().backward()
        optimizer.step()
        return model, optimizer

    (trace,) = watch(run).trained
    return next(e for e in trace.events if e.kind is EventKind.LOGIC)


@pytest.mark.parametrize(
    ("dtype", "number", "name"), [(FP16, 0.9999, "fp16"), (BF16, 0.999, "bf16")]
)
@pytest.mark.parametrize("how", [quotient, power, logarithm])
def test_one_less_what_was_rounded_to_one(
    dtype: torch.dtype, number: float, name: str, how: Callable[[Tensor, Tensor], Tensor]
) -> None:
    stored = born(torch.tensor([number, 0.5, 0.25]).to(dtype), how).stored
    assert stored is not None
    assert (stored.value, stored.format, stored.name) == (1.0, name, "share")
    assert line(stored.site) == line_of(how, "return")


@pytest.mark.parametrize(
    ("share", "how"),
    [
        (torch.tensor([1.0, 0.5, 0.25]), quotient),  # fp32: it was 1
        (torch.tensor([1.0, 0.0, 1.0], dtype=FP16), quotient),  # an indicator
        (torch.tensor([0.0, 0.5, 0.25], dtype=FP16), above_zero),  # a stored 0
        (torch.tensor([1.0, 0.5, 0.25], dtype=FP16), of_two),  # equal to a parameter
    ],
    ids=["fp32", "indicator", "zero", "parameter"],
)
def test_what_is_no_rounded_number(share: Tensor, how: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert born(share, how).stored is None


def test_a_number_of_an_optimizer_of_ones_own() -> None:
    w = torch.ones(3, dtype=BF16, requires_grad=True)

    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            decay = torch.tensor(0.999, dtype=BF16)
            w.sub_(w.grad / (1 - decay**1))

    def run() -> Any:
        optimizer = Own([w], {})
        (w * 2).sum().backward()
        optimizer.step()
        return optimizer

    (trace,) = watch(run).trained
    (event,) = (e for e in trace.events if e.kind is EventKind.LOGIC)
    assert event.stored is not None
    assert (event.stored.value, event.stored.name) == (1.0, None)
