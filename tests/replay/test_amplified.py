"""Sums that are far less exact than their operands, and what that does to a gradient."""

from __future__ import annotations

import pytest
import torch
from replaying import watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.exact_sums import with_shares
from fp16doctor.schema.precision import AmplifiedError

HALF = torch.bfloat16


def gaps(h: Tensor) -> Tensor:
    ends = F.softplus(h).to(HALF).cumsum(0)
    return (ends[1:] - ends[:-1]).float()


def beside_an_infinity(h: Tensor) -> Tensor:
    ends = F.softplus(h).to(HALF).cumsum(0)
    ends = torch.cat([torch.full_like(ends[:1], -torch.inf), ends])
    return (ends[1:] - ends[:-1])[1:].float()


def gathered(h: Tensor) -> Tensor:
    total = torch.zeros(1, dtype=HALF)
    for value in F.softplus(h).to(HALF).unbind():
        total = total + value
    return total.float() / 600


def plain(h: Tensor) -> Tensor:
    return (h.to(HALF) + 1 - F.softplus(h).to(HALF)).float()


def linear(h: Tensor) -> Tensor:
    """The difference cancels, but no gradient depends on its value."""
    near = h.to(HALF)
    return (near + 100 - (near * 1.01 + 100)).float() + 0 * h


def amplified(head: object, *, squares: bool = True) -> tuple[AmplifiedError, ...]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    batch = torch.randn(600, 4)
    found: list[tuple[AmplifiedError, ...]] = []

    def train() -> object:
        out = head(model(batch))  # type: ignore[operator]
        loss = (out - 1).square().mean() if squares else out.mean()
        loss.backward()
        return model

    seen = watch(train)
    (trace,) = seen.traces
    assert trace.precision is not None
    found.append(with_shares(seen.tapes[0], trace.precision.amplified))
    return found[0]


def test_a_difference_of_running_sums() -> None:
    (found,) = amplified(gaps)
    assert found.site.op == "aten.sub.Tensor"
    assert found.cause_site is not None
    assert found.cause_site.op == "aten.cumsum.default"
    assert found.error > 0.3 > 0.01 > found.error_in
    assert found.share == pytest.approx(1, abs=0.1)


def test_an_infinity_that_is_meant_hides_no_difference() -> None:
    (found,) = amplified(beside_an_infinity)
    assert found.site.op == "aten.sub.Tensor"
    assert found.error > 0.3 > 0.01 > found.error_in


def test_a_sum_that_gathers_term_by_term() -> None:
    found = amplified(gathered)
    assert found
    assert {a.site.op for a in found} == {"aten.add.Tensor"}
    last = found[-1]
    assert last.error > 0.1 > 0.01 > last.error_in
    assert last.share == pytest.approx(1, abs=0.1)


def test_ordinary_rounding() -> None:
    assert not amplified(plain)


def test_a_value_that_no_gradient_depends_on() -> None:
    found = amplified(linear, squares=False)
    assert found
    assert all(abs(a.share or 0.0) < 0.1 for a in found)
