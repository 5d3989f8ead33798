"""Which reference an examination ends with, and what it says of the step as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import only, sink, watch
from torch import Tensor, nn

from fp16doctor.schema.trace import EventKind, ReplayTrace

INF = float("inf")


def step(loss: Callable[[Tensor], Tensor], w: Tensor) -> ReplayTrace:
    w.requires_grad_()
    (trace,) = watch(lambda: loss(w).backward()).trained
    return trace


def test_healthy_step_is_compared_with_single_precision() -> None:
    trace = step(lambda w: (w * w).sum(), torch.ones(3, dtype=torch.float16))
    assert trace.reference == "fp32"
    assert trace.events == ()
    assert trace.loss == trace.loss_reference == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_mask_needs_no_second_reference(dtype: torch.dtype) -> None:
    def loss(w: Tensor) -> Tensor:
        return torch.softmax(w.masked_fill(torch.tensor([False, True, False]), -INF), 0)[0]

    trace = step(loss, torch.ones(3, dtype=dtype))
    assert only(trace.events, "masked_fill").kind is EventKind.INTENDED
    assert trace.reference == "fp32"


def test_healed_overflow_of_single_precision_does() -> None:
    trace = step(lambda w: 1 / w.exp().sum() + w.sum(), torch.tensor([100.0]))
    assert trace.reference == "fp64"
    event = trace.events[0]
    assert event.kind is EventKind.OVERFLOW
    assert event.format == "fp32"


def test_overflow_of_half_does_not() -> None:
    trace = step(lambda w: (w * w).sum(), torch.tensor([300.0], dtype=torch.float16))
    assert trace.reference == "fp32"


def test_logic_is_confirmed_in_double() -> None:
    trace = step(lambda w: w.log().sum(), torch.tensor([-1.0], dtype=torch.float16))
    assert trace.reference == "fp64"
    assert trace.events[0].kind is EventKind.LOGIC


def test_several_losses_are_summed() -> None:
    w = torch.tensor([1.0, 2.0]).requires_grad_()

    def run() -> None:
        w.sum().backward()
        (w * 10).sum().backward()

    (trace,) = watch(run).trained
    assert trace.loss == 33.0
    assert sink(trace, "gradients").amax_reference == 11.0


def test_complex_parameters_are_counted_in_parts() -> None:
    w = torch.tensor([1 + 2j, 3 - 1j]).requires_grad_()

    def run() -> Any:
        optimizer = torch.optim.SGD([w], lr=0.1)
        torch.view_as_real(w).pow(2).sum().backward()
        optimizer.step()

    (trace,) = watch(run).trained
    assert trace.fidelity.bit_equal
    assert sink(trace, "parameters").total == 4


def test_overflow_in_a_complex_tensor_names_its_element() -> None:
    w = torch.tensor([1.0, 3e20]).requires_grad_()

    def run() -> Any:
        z = torch.view_as_complex(torch.stack([w, w], -1))
        torch.view_as_real(z * (2j * 1e20)).sum().backward()

    (trace,) = watch(run).trained
    event = trace.events[0]
    assert event.kind is EventKind.OVERFLOW
    assert event.format == "fp32"
    assert event.site.element == (1,)
    assert event.n_inf == 2


def test_events_behind_the_update_are_in_the_tail() -> None:
    w = torch.tensor([1.0, 2.0]).requires_grad_()

    def run() -> Any:
        optimizer = torch.optim.SGD([w], lr=0.1)
        w.sum().backward()
        optimizer.step()
        logged = w.detach().half() * 60000
        return logged, optimizer

    seen = watch(run)
    event = only(seen.traces[-1].events, "mul")
    assert event.in_tail
    assert event.reaches == ()


def test_seconds_and_ops_are_counted() -> None:
    model = nn.Linear(2, 2)
    (trace,) = watch(lambda: model(torch.ones(1, 2)).sum().backward()).trained
    assert trace.seconds > 0
    assert trace.n_ops > 4
    assert trace.complete
