"""Values that rounding moved onto a pole: the op that met it, and the op whose rounding did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import line, line_of, only, short, sink, watch
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event, EventKind, ReplayTrace

HALF, BRAIN = torch.float16, torch.bfloat16


def step(loss: Callable[[Tensor], Tensor], w: Tensor) -> ReplayTrace:
    """One step of SGD on ``w``; returns its trace."""
    w.requires_grad_()

    def run() -> Any:
        optimizer = torch.optim.SGD([w], lr=0.1)
        loss(w).backward()
        optimizer.step()
        return optimizer

    (trace,) = watch(run).trained
    return trace


def first(trace: ReplayTrace, kind: EventKind) -> Event:
    return next(e for e in trace.events if e.kind is kind)


def test_log_of_a_softmax_that_flushed() -> None:
    def loss(w: Tensor) -> Tensor:
        p = torch.softmax(w, -1)
        return -torch.log(p)[0, 2]

    trace = step(loss, torch.tensor([[20.0, 19.0, -9.0]], dtype=HALF))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log")
    assert event.kind is EventKind.BOUNDARY
    assert line(event.site) == line_of(loss, "torch.log(p)")
    assert event.site.element == (0, 2)
    assert event.exact == float("-inf")
    assert event.reference == pytest.approx(-29.31, abs=0.01)
    assert event.operands == (("input[0]", 0.0, pytest.approx(1.86e-13, rel=0.1)),)
    assert event.cause_site is not None
    assert short(event.cause_site.op) == "_softmax"
    assert line(event.cause_site) == line_of(loss, "torch.softmax")
    assert event.cause_site.element == (0, 2)
    assert event.cause_as_run == 0.0
    assert event.cause_exact == pytest.approx(1.86e-13, rel=0.1)
    assert event.reaches[0] == "loss"


def test_eps_that_became_zero() -> None:
    def loss(w: Tensor) -> Tensor:
        length = w.pow(2).sum(-1, keepdim=True)
        safe = length + 1e-8
        return (w / safe).sum()

    trace = step(loss, torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=HALF))
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.BOUNDARY
    assert short(event.site.op) == "div"
    assert event.site.element == (1, 0)
    assert ("input[1]", 0.0, pytest.approx(1e-8)) in event.operands
    assert line(event.cause_site) == line_of(loss, "length + 1e-8")
    assert event.cause_exact == pytest.approx(1e-8)


def test_clamp_to_an_eps_that_became_zero() -> None:
    def loss(w: Tensor) -> Tensor:
        return F.normalize(w, dim=-1).sum()

    trace = step(loss, torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=HALF))
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.BOUNDARY
    assert event.cause_site is not None
    assert short(event.cause_site.op) == "clamp_min"
    assert event.cause_as_run == 0.0


def test_sigmoid_that_rounded_to_one() -> None:
    def loss(w: Tensor) -> Tensor:
        p = torch.sigmoid(w)
        return -torch.log1p(-p).sum()

    trace = step(loss, torch.tensor([1.0, 7.5], dtype=BRAIN))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log1p")
    assert event.kind is EventKind.BOUNDARY
    assert event.format == "bf16"
    assert event.site.element == (1,)
    assert event.reference == pytest.approx(-7.5, abs=0.01)
    assert event.cause_site is not None
    assert short(event.cause_site.op) == "sigmoid"
    assert event.cause_as_run == 1.0
    assert event.cause_exact == pytest.approx(0.99945, abs=1e-5)


def test_clamp_whose_bound_rounded_to_one() -> None:
    def loss(w: Tensor) -> Tensor:
        p = w.clamp(max=1 - 1e-4)
        return -torch.log(1 - p).sum()

    trace = step(loss, torch.tensor([0.5, 3.0], dtype=BRAIN))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log")
    assert event.kind is EventKind.BOUNDARY
    assert event.cause_site is not None
    assert short(event.cause_site.op) == "clamp"


def variance(w: Tensor) -> Tensor:
    mean, square = w.mean(-1), w.pow(2).mean(-1)
    difference = square - mean.pow(2)
    return difference.sqrt().sum()


def test_root_of_a_difference_that_became_negative() -> None:
    torch.manual_seed(4)
    w = (3 + 0.01 * torch.randn(16, 9)).to(HALF)
    trace = step(variance, w)
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "sqrt")
    assert event.kind is EventKind.BOUNDARY
    assert event.n_nan > 0
    assert event.operands[0][1] < 0 < event.operands[0][2]
    assert line(event.cause_site) == line_of(variance, "square - mean")


def test_cause_behind_views_and_copies() -> None:
    """Element (1, 2) of the softmax is looked for behind a transposition and a gather."""

    def loss(w: Tensor) -> Tensor:
        p = torch.softmax(w, -1)
        turned = p.t().reshape(-1)
        picked = turned[torch.tensor([5, 0])]
        return -torch.log(picked).sum()

    trace = step(loss, torch.tensor([[1.0, 1.0, 1.0], [2.0, 9.0, -12.0]], dtype=HALF))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log")
    assert event.site.element == (0,)
    assert event.cause_site is not None
    assert short(event.cause_site.op) == "_softmax"
    assert event.cause_site.element == (1, 2)


def test_cause_behind_a_reduction() -> None:
    def loss(w: Tensor) -> Tensor:
        small = w * 1e-5
        total = (small * small).sum(-1)
        return (1 / total).sum()

    trace = step(loss, torch.tensor([[1000.0, 900.0], [0.5, 0.3]], dtype=HALF))
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.BOUNDARY
    assert event.site.element == (1,)
    assert line(event.cause_site) == line_of(loss, "(small * small)")
    assert short(event.cause_site.op if event.cause_site else "") == "mul"


def test_no_cause_where_the_operands_agree() -> None:
    """In fp16 itself 1/x is too large for an x that both runs have: no boundary, an overflow."""

    def loss(w: Tensor) -> Tensor:
        return (1 / w).sum()

    trace = step(loss, torch.tensor([1.0, 1e-5], dtype=HALF))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "reciprocal")
    assert event.kind is EventKind.OVERFLOW
    assert event.cause_site is None


@pytest.mark.parametrize("foreach", [False, True])
def test_adam_whose_second_moment_and_eps_vanish(foreach: bool) -> None:
    w = torch.tensor([1.0, 2.0, 3.0], dtype=HALF).requires_grad_()
    other = torch.tensor([1.0], dtype=HALF).requires_grad_()
    slopes = torch.tensor([100.0, 1e-3, 50.0], dtype=HALF)

    def run() -> Any:
        optimizer = torch.optim.Adam([other, w], lr=1e-3, foreach=foreach)
        ((w * slopes).sum() + other.sum()).backward()
        optimizer.step()
        return optimizer

    (trace,) = watch(run).trained
    event = trace.events[0]
    assert event.kind is EventKind.BOUNDARY
    assert event.site.phase is Phase.OPTIMIZER
    assert short(event.site.op) == ("_foreach_addcdiv_" if foreach else "addcdiv_")
    assert event.site.element == (1,)
    assert event.reaches == ("parameters",)
    assert event.cause_site is not None
    assert short(event.cause_site.op).strip("_") in ("foreach_addcmul", "addcmul", "foreach_mul")
    assert event.cause_as_run == 0.0
    assert sink(trace, "parameters").nonfinite == 1


def test_distance_of_equal_rows_in_backward() -> None:
    """The reference's distance is tiny but not zero; the run's is 0, and so is its gradient's."""

    def loss(w: Tensor) -> Tensor:
        shifted = w + 1e-4
        return (shifted - w).norm(dim=-1).sqrt().sum()

    trace = step(loss, torch.tensor([[8.0, 8.0]], dtype=HALF))
    event = first(trace, EventKind.BOUNDARY)
    assert event.site.phase is Phase.BACKWARD
    assert "gradients" in event.reaches


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1e-4, dtype=HALF))

    def forward(self, x: Tensor) -> Tensor:
        return x / (self.gain * 1e-5)


def test_module_of_the_cause_is_named() -> None:
    model = Scaled()

    def run() -> Any:
        loss = model(torch.ones(2, dtype=HALF)).sum()
        loss.backward()

    (trace,) = watch(run).trained
    event = next(e for e in trace.events if e.site.phase is Phase.FORWARD)
    assert event.kind is EventKind.BOUNDARY
    assert event.cause_site is not None
    assert event.cause_site.module_path == ""
    assert event.cause_site.module_class == "Scaled"


def test_terms_of_a_cancelling_sum_may_be_one_by_nature() -> None:
    """|a − b|² of unit vectors as 1 − 2ab + 1: the sum is to blame, not the norms."""

    def loss(w: Tensor) -> Tensor:
        dots = w @ w.t()
        squares = dots.diagonal()
        partial = squares.unsqueeze(0) - 2.0 * dots
        distances = partial + squares.unsqueeze(1)
        return distances.sqrt().detach().sum() + w.sum()

    torch.manual_seed(0)
    close = torch.randn(1, 8) + 0.06 * torch.randn(24, 8)
    trace = step(loss, F.normalize(close, dim=-1).to(BRAIN))
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "sqrt")
    assert event.kind is EventKind.BOUNDARY
    assert line(event.cause_site) in (
        line_of(loss, "partial +"),
        line_of(loss, "squares.unsqueeze(0) -"),
    )


@pytest.mark.parametrize("limit", ["MAX_OPS", "MAX_ELEMENTS"])
def test_search_for_the_cause_is_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"fp16doctor.replay.lineage.{limit}", 0)
    trace = step(lambda w: (1 / (w * 1e-5)).sum(), torch.tensor([1e-4], dtype=HALF))
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.BOUNDARY
    assert event.cause_site is None
