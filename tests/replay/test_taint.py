"""Where a non-finite value goes on the tape: storages, lists, stops, sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from replaying import line, line_of, only, short, watch
from torch import Tensor

from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind, ReplayTrace

HALF = torch.float16


def trained(run: Callable[[], Any]) -> ReplayTrace:
    (trace,) = watch(run).trained
    return trace


def two() -> tuple[Tensor, Tensor]:
    a = torch.tensor([1.0, 2.0], dtype=HALF).requires_grad_()
    b = torch.tensor([3.0, 4.0], dtype=HALF).requires_grad_()
    return a, b


def test_first_nan_and_heirs() -> None:
    a, _ = two()

    def run() -> Any:
        big = a * 60000
        zero = big - big
        (zero + 1).sum().backward()

    event = only(tuple(e for e in trained(run).events if e.site.phase is Phase.LOSS), "mul")
    assert line(event.first_nan) == line_of(run, "big - big")
    assert event.later_nonfinite >= 3
    assert "loss" in event.reaches


def test_items_of_a_foreach_op_do_not_infect_each_other() -> None:
    a, b = two()

    def run() -> Any:
        bad, good = torch._foreach_mul([a.detach(), b.detach()], [60000.0, 1.0])
        mixed = torch._foreach_add([bad, good], 1.0)
        poles = torch._foreach_reciprocal([mixed[1], torch.zeros(2, dtype=HALF)])
        ((a * good).sum() + (b * poles[1].clamp(max=2.0)).sum()).backward()
        return bad, mixed

    trace = trained(run)
    mul = only(tuple(e for e in trace.events if e.site.phase is not Phase.BACKWARD), "_foreach_mul")
    assert mul.later_nonfinite == 1  # the addition; not the reciprocals
    assert mul.reaches == ()


def test_birth_in_a_list_beside_a_nan() -> None:
    a, b = two()

    def run() -> Any:
        a.sum().backward()
        state = [torch.full((2,), float("nan"), dtype=HALF), torch.full((2,), 300.0, dtype=HALF)]
        torch._foreach_mul_(state, state)
        return state, b

    trace = trained(run)
    event = only(trace.events, "_foreach_mul_")
    assert event.kind is EventKind.OVERFLOW
    assert event.exact == 90000.0
    assert event.operands[0][1:] == (300.0, 300.0)


def test_storage_that_was_overwritten_is_clean() -> None:
    a, b = two()

    def run() -> Any:
        scratch = a.detach() * 60000
        scratch.copy_(b.detach())
        (a * scratch).sum().backward()
        return scratch

    trace = trained(run)
    event = only(trace.events, "mul")
    assert event.kind is EventKind.OVERFLOW
    assert event.reaches == ()
    assert event.later_nonfinite == 0


def test_half_overwritten_storage_is_not() -> None:
    a, _ = two()

    def run() -> Any:
        scratch = a.detach() * 60000
        scratch[1:].fill_(1.0)
        scratch[0] = 1.0  # an element at a time, but with values that are finite
        (a * scratch).sum().backward()
        return scratch

    event = next(e for e in trained(run).events if e.kind is EventKind.OVERFLOW)
    assert short(event.site.op) == "mul"
    assert event.reaches == ()


def test_second_birth_stands_for_itself() -> None:
    a, b = two()

    def run() -> Any:
        first = (a * 60000).clamp(max=1.0)
        second = b * 60000
        (first.sum() + second.sum()).backward()

    trace = trained(run)
    forward = [e for e in trace.events if e.site.phase is Phase.LOSS]
    assert [e.reaches[:1] for e in forward] == [(), ("loss",)]


def test_gradients_that_are_reached_and_parameters_that_are_not() -> None:
    """The step is not taken, as a GradScaler would do."""
    a, _ = two()

    def run() -> Any:
        (a * 60000).sum().backward()

    event = trained(run).events[0]
    assert "gradients" not in event.reaches  # the gradient is 60000 itself
    assert "loss" in event.reaches


def test_nan_made_of_an_inf_belongs_to_the_inf() -> None:
    a, _ = two()

    def run() -> Any:
        big = a * 60000
        (torch.softmax(big, 0) * a).sum().backward()

    trace = trained(run)
    forward = [e for e in trace.events if e.site.phase is Phase.LOSS]
    assert [short(e.site.op) for e in forward] == ["mul"]
    assert forward[0].first_nan is not None
    assert short(forward[0].first_nan.op) == "_softmax"
