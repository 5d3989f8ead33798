"""Where an inf goes: gradients, buffers, nowhere; and overflows beside the infs of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import half_parameter, line, line_of, only, short, sink, watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind, ReplayTrace

HALF = torch.float16


def step(loss: Callable[[Tensor], Tensor], *values: float) -> ReplayTrace:
    """One step of SGD on a half parameter; returns its trace."""
    w = half_parameter(*values)

    def run() -> Any:
        optimizer = torch.optim.SGD([w], lr=0.1)
        loss(w).backward()
        optimizer.step()
        return w, optimizer

    (trace,) = watch(run).trained
    return trace


def test_static_scale_too_large() -> None:
    w = half_parameter(1.0, 2.0)

    def run() -> Any:
        loss = (w * torch.tensor([3.0, 50.0], dtype=HALF)).sum()
        (loss.float() * 4096).backward()
        return w

    (trace,) = watch(run).trained
    event = only(trace.events, "mul")
    assert event.kind is EventKind.OVERFLOW
    assert event.site.phase is Phase.BACKWARD
    assert line(event.site) == line_of(run, "torch.tensor([3.0")
    assert event.exact == 4096 * 50.0
    assert event.reaches == ("gradients",)
    assert sink(trace, "loss").nonfinite == 0


def test_gradient_norm_in_half() -> None:
    w = half_parameter(1.0, 2.0)

    def run() -> Any:
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w * torch.tensor([300.0, 10.0], dtype=HALF)).sum().backward()
        assert w.grad is not None
        norm = w.grad.pow(2).sum().sqrt()
        w.grad.mul_(1.0 / norm)
        optimizer.step()
        return w, optimizer

    (trace,) = watch(run).trained
    event = only(trace.events, "pow")
    assert event.kind is EventKind.OVERFLOW
    assert event.site.phase is Phase.OPTIMIZER
    assert event.exact == 90000.0
    assert event.reaches == ()  # 1/inf = 0: the update is gone, not the weights
    assert sink(trace, "gradients").error == 0.0
    assert sink(trace, "applied gradients").error == 1.0


class RootMeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_inf_that_rsqrt_swallows_leaves_a_wrong_loss() -> None:
    def run() -> Any:
        model = nn.Sequential(nn.Linear(2, 4), RootMeanSquare()).half()
        with torch.no_grad():
            model[0].weight.fill_(200.0)
        loss = model(torch.full((3, 2), 2.0, dtype=HALF)).float().mean()
        loss.backward()
        return model

    (trace,) = watch(run).trained
    event = only(trace.events, "pow")
    assert event.kind is EventKind.OVERFLOW
    assert event.site.module_path == "1"
    assert event.reaches == ()
    loss = sink(trace, "loss")
    assert loss.nonfinite == 0
    assert loss.error == pytest.approx(1.0)


def test_inf_that_clamp_swallows() -> None:
    def clamped(w: Tensor) -> Tensor:
        return (w.exp().clamp(max=10.0) * w).sum()

    trace = step(clamped, 12.0, 1.0)
    event = only(trace.events, "exp")
    assert event.kind is EventKind.OVERFLOW
    assert "loss" not in event.reaches
    assert sink(trace, "loss").error == pytest.approx(0.0, abs=1e-3)


def test_running_statistics_are_poisoned() -> None:
    def run() -> Any:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", HALF):
            loss = model(torch.tensor([[6e4, 6e4], [1.0, 2.0], [3.0, 1.0]]).mul(4)).sum()
        loss.backward()
        optimizer.step()
        return model, optimizer

    (trace,) = watch(run).trained
    event = trace.events[0]
    assert event.kind is EventKind.OVERFLOW
    assert "buffers" in event.reaches
    assert "parameters" in event.reaches
    assert sink(trace, "buffers").nonfinite > 0
    assert sink(trace, "buffers").nonfinite_reference == 0


def test_script_that_checks_its_loss_before_backward() -> None:
    def run() -> None:
        model = nn.Linear(2, 1).half()
        with torch.no_grad():
            model.weight.fill_(300.0)
        out = model(torch.full((1, 2), 300.0, dtype=HALF))
        loss = out.pow(2).mean()
        assert not torch.isfinite(loss)

    seen = watch(run)
    event = only(seen.traces[-1].events, "addmm")
    assert event.kind is EventKind.OVERFLOW
    assert event.reaches == ("loss",)


# -- in tensors that hold inf already ------------------------------------------------------------


def masked_scores(w: Tensor) -> Tensor:
    scores = (w.float() * torch.ones(2, 1)).half()
    mask = torch.tensor([[0.0, 0.0, float("-inf")]] * 2, dtype=HALF)
    biased = scores + mask
    scaled = biased * 300
    return torch.softmax(scaled.float(), -1)[:, 0].sum() * 0.001 + scaled[:, 1].sum()


def test_overflow_beside_the_infs_of_a_mask() -> None:
    trace = step(masked_scores, 1.0, 250.0, 2.0)
    event = only(trace.events, "mul")
    assert event.kind is EventKind.OVERFLOW
    assert line(event.site) == line_of(masked_scores, "biased * 300")
    assert event.exact == 75000.0
    assert event.site.element == (0, 1)
    assert event.n_inf == 2  # not the two of the mask
    assert "loss" in event.reaches


def test_second_overflow_in_another_row_of_a_product() -> None:
    def run() -> Any:
        first = nn.Linear(2, 2, bias=False).half()
        second = nn.Linear(2, 2, bias=False).half()
        with torch.no_grad():
            first.weight.copy_(torch.tensor([[300.0, 0.0], [0.0, 1.0]]))
            second.weight.copy_(torch.tensor([[1.0, 300.0], [1.0, 0.0]]))
        x = torch.tensor([[300.0, 1.0], [1.0, 400.0]], dtype=HALF)
        loss = second(first(x)).float().sum()
        loss.backward()
        return first, second

    (trace,) = watch(run).trained
    events = [e for e in trace.events if short(e.site.op) == "mm" and e.site.phase is Phase.FORWARD]
    assert [(e.kind, e.site.element) for e in events] == [
        (EventKind.OVERFLOW, (0, 0)),
        (EventKind.OVERFLOW, (1, 0)),
    ]
    assert [e.exact for e in events] == [90000.0, 300 * 400.0 + 300.0]


def test_what_an_inf_becomes_is_no_birth() -> None:
    def chain(w: Tensor) -> Tensor:
        return F.relu((w * 500) * 2 + 1).sum()

    trace = step(chain, 1.0, 200.0)
    forward = [e for e in trace.events if e.site.phase is Phase.LOSS]
    assert len(forward) == 1
    assert forward[0].later_nonfinite >= 4


def test_inf_gradient_has_no_further_births_behind_it() -> None:
    """Behind a gradient that overflowed in part, other overflowing elements follow from it."""
    w = half_parameter(1.0, 1.0)

    def run() -> Any:
        hidden = w * torch.tensor([1.0, 300.0], dtype=HALF)
        loss = (hidden * torch.tensor([300.0, 200.0], dtype=HALF)).float().sum()
        (loss * 256).backward()

    (trace,) = watch(run).trained
    backward = [e for e in trace.events if e.site.phase is Phase.BACKWARD]
    assert [(short(e.site.op), e.site.element, e.exact) for e in backward] == [
        ("mul", (0,), 300 * 256.0)
    ]


def test_output_that_overflowed_counts_before_one_that_nothing_can_help() -> None:
    @torch.library.custom_op("fp16doctor_tests::pole_and_product", mutates_args=())
    def pole_and_product(x: Tensor) -> tuple[Tensor, Tensor]:
        return x / 0, x * 60000

    def run() -> Any:
        return pole_and_product(torch.tensor([1.0, 2.0], dtype=HALF))

    event = only(watch(run).traces[-1].events, "pole_and_product")
    assert event.kind is EventKind.OVERFLOW
    assert event.exact == 120000.0
    assert event.n_inf == 1
