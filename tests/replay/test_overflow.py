"""Overflows: which op, line, element, exact value, and where the inf goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import half_parameter, line, line_of, only, watch
from torch import Tensor

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


def added(w: Tensor) -> Tensor:
    return (w + w).sum()


def multiplied(w: Tensor) -> Tensor:
    return (w * 500).sum()


def product(w: Tensor) -> Tensor:
    return torch.outer(w, w).mm(torch.ones(3, 2, dtype=HALF)).sum()


def exponential(w: Tensor) -> Tensor:
    return w.exp().sum()


def power(w: Tensor) -> Tensor:
    return w.pow(3).sum()


def summed(w: Tensor) -> Tensor:
    return w.expand(4, 3).sum(0).mean()


@pytest.mark.parametrize(
    ("loss", "values", "op", "element", "exact"),
    [
        (added, (1.0, 2.0, 40000.0), "add", (2,), 80000.0),
        (multiplied, (1.0, 200.0, 0.0), "mul", (1,), 100000.0),
        (product, (1.0, 200.0, 255.0), "mm", (2, 0), 255.0 * 456),
        (exponential, (12.0, 1.0, 0.0), "exp", (0,), 162754.8),
        (power, (0.0, -50.0, 2.0), "pow", (1,), -125000.0),
        (summed, (100.0, 20000.0, 3.0), "sum", (1,), 80000.0),
    ],
)
def test_overflow_of_one_op(
    loss: Callable[[Tensor], Tensor],
    values: tuple[float, ...],
    op: str,
    element: tuple[int, ...],
    exact: float,
) -> None:
    trace = step(loss, *values)
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), op)
    assert event.kind is EventKind.OVERFLOW
    assert line(event.site) == line_of(loss, "return")
    assert event.site.element == element
    assert event.format == "fp16"
    assert event.exact == pytest.approx(exact, rel=1e-3)
    assert event.reference == pytest.approx(exact, rel=1e-3)
    assert event.reference_amax == pytest.approx(abs(exact), rel=1e-3)
    assert "loss" in event.reaches
    assert event.later_nonfinite > 0


def test_operands_are_those_of_the_element() -> None:
    event = only(step(added, 1.0, 40000.0).events, "add")
    assert event.operands == (("input[0]", 40000.0, 40000.0), ("input[1]", 40000.0, 40000.0))
    assert event.n_inf == 1
    assert event.n_nan == 0
    assert event.total == 2


def test_a_products_operands_are_no_single_elements() -> None:
    event = only(step(product, 1.0, 200.0, 255.0).events, "mm")
    assert event.operands == ()


def test_cast_to_half() -> None:
    def cast(w: Tensor) -> Tensor:
        return (w.float() * 1000).half().sum()

    event = only(step(cast, 1.0, 66.0).events, "_to_copy")
    assert event.kind is EventKind.OVERFLOW
    assert event.site.element == (1,)
    assert event.exact == 66000.0
    assert not event.integer_operand


def test_integers_that_half_cannot_hold() -> None:
    def counted(w: Tensor) -> Tensor:
        return (w * torch.arange(69998, 70000).half()).sum()

    event = only(step(counted, 1.0, 1.0).events, "_to_copy")
    assert event.kind is EventKind.OVERFLOW
    assert event.integer_operand
    assert event.exact == 69999.0


def test_constant_that_half_cannot_hold() -> None:
    def shifted(w: Tensor) -> Tensor:
        return (w + 1e5).sum()

    event = only(step(shifted, 1.0, 2.0).events, "add")
    assert event.constant == 1e5


def test_sizes_are_no_constants() -> None:
    def filled(w: Tensor) -> Tensor:
        return (w * torch.full((70000,), 300.0, dtype=HALF)).sum()

    trace = step(filled, 300.0)
    event = only(trace.events, "mul")
    assert event.constant is None


def test_overflow_of_single_precision_is_told_by_double() -> None:
    w = torch.tensor([100.0, 1.0], requires_grad=True)

    def run() -> Any:
        loss = w.exp().sum()
        loss.backward()
        return w

    (trace,) = watch(run).trained
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "exp")
    assert trace.reference == "fp64"
    assert event.kind is EventKind.OVERFLOW
    assert event.format == "fp32"
    assert event.exact == pytest.approx(2.688e43, rel=1e-3)


def test_kernel_that_overflows_inside() -> None:
    """The hypotenuse of 240 and 180 is 300, but a kernel that squares in half gets inf."""

    @torch.library.custom_op("fp16doctor_tests::hypotenuse", mutates_args=())
    def hypotenuse(a: Tensor, b: Tensor) -> Tensor:
        return (a * a + b * b).sqrt()

    w = half_parameter(1.0)

    def run() -> Any:
        x = torch.tensor([240.0, 3.0], dtype=HALF)
        y = torch.tensor([180.0, 4.0], dtype=HALF)
        loss = (w * hypotenuse(x, y)).sum()
        loss.backward()
        return w

    (trace,) = watch(run).trained
    event = only(trace.events, "hypotenuse")
    assert event.kind is EventKind.INTERNAL_OVERFLOW
    assert event.exact == pytest.approx(300.0)
    assert event.site.element == (0,)
