"""Non-finite values that are no matter of precision: faults of logic, and infs on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from replaying import line, line_of, only, short, sink, watch
from torch import Tensor
from torch.nn import functional as F

from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind, ReplayTrace

INF = float("inf")
FORMATS = [torch.float16, torch.bfloat16, torch.float32]


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


def attention(mask: list[list[bool]]) -> Callable[[Tensor], Tensor]:
    def loss(w: Tensor) -> Tensor:
        scores = w.masked_fill(torch.tensor(mask), -INF)
        weights = torch.softmax(scores, -1)
        return (weights * torch.arange(3)).sum()

    return loss


@pytest.mark.parametrize("dtype", FORMATS)
def test_mask_is_intended(dtype: torch.dtype) -> None:
    loss = attention([[False, True, True], [False, False, True]])
    trace = step(loss, torch.randn(2, 3).to(dtype))
    event = only(trace.events, "masked_fill")
    assert event.kind is EventKind.INTENDED
    assert event.reaches == ()
    assert event.n_inf == 3


@pytest.mark.parametrize("dtype", FORMATS)
def test_row_without_any_entry(dtype: torch.dtype) -> None:
    loss = attention([[False, True, True], [True, True, True]])
    trace = step(loss, torch.randn(2, 3).to(dtype))
    assert trace.reference == "fp64"
    mask = only(trace.events, "masked_fill")
    assert mask.kind is EventKind.INTENDED
    event = only(trace.events, "_softmax")
    assert event.kind is EventKind.LOGIC
    assert line(event.site) == line_of(attention, "torch.softmax")
    assert event.site.element == (1, 0)
    assert event.n_nan == 3
    assert event.operands == (("input[0]", -INF, -INF),)
    assert event.reaches == ("loss",)  # the mask's backward puts zeros into the row


def test_mask_that_comes_with_the_batch_is_no_event() -> None:
    mask = torch.tensor([[0.0, -INF, 0.0]], dtype=torch.float16)
    trace = step(lambda w: (torch.softmax(w + mask, -1) * w).sum(), torch.ones(1, 3).half())
    assert trace.events == ()
    assert sink(trace, "loss").nonfinite == 0


def test_two_masks_over_each_other_are_intended() -> None:
    def loss(w: Tensor) -> Tensor:
        causal = w.masked_fill(torch.tensor([[False, True, True], [False, False, True]]), -INF)
        padded = causal.masked_fill(torch.tensor([[False, False, True]]), -INF)
        return torch.softmax(padded, -1)[:, 0].sum()

    trace = step(loss, torch.randn(2, 3).half())
    assert {e.kind for e in trace.events} == {EventKind.INTENDED}


def test_log_of_a_mask_is_intended() -> None:
    def loss(w: Tensor) -> Tensor:
        return torch.softmax(w + torch.tensor([1.0, 1.0, 0.0]).half().log(), -1)[0]

    trace = step(loss, torch.ones(3).half())
    event = only(trace.events, "log")
    assert event.kind is EventKind.INTENDED


def test_inf_that_only_the_run_turns_into_nan_is_not_the_fault() -> None:
    """1/0 is there in both runs and healed in the reference; the run multiplies it with 0."""

    def loss(w: Tensor) -> Tensor:
        unbounded = 1 / torch.zeros(2).half()
        weight = w.detach() * 1e-5
        bounded = 1 / (1 + unbounded * weight)
        return bounded.sum() + w.sum()

    trace = step(loss, torch.tensor([1.0, 1e-4]).half())
    assert trace.events[0].kind is EventKind.INTENDED
    assert short(trace.events[0].site.op) == "reciprocal"
    event = next(e for e in trace.events if e.n_nan)
    assert event.kind is EventKind.BOUNDARY
    assert line(event.site) == line_of(loss, "unbounded * weight")
    assert line(event.cause_site) == line_of(loss, "w.detach() * 1e-5")
    assert "loss" in event.reaches


@pytest.mark.parametrize("dtype", FORMATS)
def test_root_of_zero_in_backward(dtype: torch.dtype) -> None:
    def loss(w: Tensor) -> Tensor:
        return w.sqrt().sum()

    trace = step(loss, torch.tensor([4.0, 0.0]).to(dtype))
    event = only(trace.events, "div")
    assert event.kind is EventKind.LOGIC
    assert event.site.phase is Phase.BACKWARD
    assert line(event.site) == line_of(loss, "w.sqrt()")
    assert event.site.element == (1,)
    assert event.reaches == ("gradients", "parameters")
    assert sink(trace, "loss").nonfinite == 0


def test_mean_over_no_entries() -> None:
    def loss(w: Tensor) -> Tensor:
        mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]]).to(w.dtype)
        return ((w * mask).sum(-1) / mask.sum(-1)).sum()

    trace = step(loss, torch.randn(2, 2).bfloat16())
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.LOGIC
    assert short(event.site.op) == "div"
    assert event.site.element == (1,)
    assert event.operands == (("input[0]", 0.0, 0.0), ("input[1]", 0.0, 0.0))
    assert event.exact != event.exact


def test_logarithm_of_a_negative_number() -> None:
    trace = step(lambda w: w.log().sum(), torch.tensor([2.0, -1.0]).half())
    event = next(e for e in trace.events if e.site.phase is Phase.LOSS)
    assert event.kind is EventKind.LOGIC
    assert event.operands == (("input[0]", -1.0, -1.0),)


def test_masked_loss_that_is_inf_times_zero() -> None:
    """log(0) at a padded place, times a mask of 0: the NaN belongs to the logarithm."""

    def loss(w: Tensor) -> Tensor:
        logs = (w * torch.tensor([1.0, 0.0]).half()).log()
        return (logs * torch.tensor([1.0, 0.0]).half()).sum()

    trace = step(loss, torch.tensor([2.0, 3.0]).half())
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log")
    assert event.kind is EventKind.LOGIC
    assert event.first_nan is not None
    assert line(event.first_nan) == line_of(loss, "logs * torch")
    assert "mul" not in [short(e.site.op) for e in trace.events if e.site.phase is Phase.LOSS]


def test_boundary_and_logic_in_one_tensor() -> None:
    """One element is a true zero, the other one flushed: named is the one precision can cure."""

    def loss(w: Tensor) -> Tensor:
        p = torch.softmax(w, -1) * torch.tensor([0.0, 1.0, 1.0]).half()
        return torch.log(p).clamp(min=-50)[1:].sum()

    trace = step(loss, torch.tensor([0.0, 0.0, -20.0]).half())
    event = only(tuple(e for e in trace.events if e.site.phase is Phase.LOSS), "log")
    assert event.kind is EventKind.BOUNDARY
    assert event.site.element == (2,)


def test_layer_norm_of_equal_values_without_eps() -> None:
    trace = step(
        lambda w: F.layer_norm(w, (2,), eps=0.0).sum(), torch.tensor([[1.0, 2.0], [3.0, 3.0]])
    )
    event = trace.events[0]
    assert event.kind is EventKind.LOGIC
    assert short(event.site.op) == "native_layer_norm"
    assert event.site.element == (1, 0)
    assert event.n_nan == 2


def test_anomaly_mode_raises_in_backward() -> None:
    """No parameter has a gradient yet; the one that was being computed is NaN."""

    def run() -> None:
        w = torch.tensor([4.0, 0.0]).half().requires_grad_()
        with torch.autograd.detect_anomaly(check_nan=True):
            loss = (w * w).sqrt().sum()
            with pytest.raises(RuntimeError, match="returned nan values"):
                loss.backward()

    with pytest.warns(UserWarning, match="Anomaly Detection|Error detected"):
        trace = watch(run).traces[-1]
    event = only(trace.events, "div")
    assert event.kind is EventKind.LOGIC
    assert event.reaches == ("gradients",)
    assert event.first_nan is not None
    assert short(event.first_nan.op) == "mul"


def test_root_of_zero_behind_relu_is_healed() -> None:
    def loss(w: Tensor) -> Tensor:
        return torch.sqrt(torch.relu(w)).sum()

    trace = step(loss, torch.tensor([4.0, -1.0, 0.0]).half())
    event = only(trace.events, "div")
    assert event.kind is EventKind.HEALED
    assert event.site.phase is Phase.BACKWARD
    assert event.n_inf == 2
    assert event.reaches == ()
    assert event.healed_by is not None
    assert short(event.healed_by.op) == "threshold_backward"


def test_division_by_zero_that_a_selection_drops_is_healed() -> None:
    def loss(w: Tensor) -> Tensor:
        h = w.exp()
        count = torch.tensor([2.0, 0.0]).to(w.dtype)
        weight = torch.nan_to_num(count / count)
        return (h * weight).sum()

    trace = step(loss, torch.ones(2).half())
    event = only(trace.events, "div")
    assert event.kind is EventKind.HEALED
    assert event.site.phase is Phase.LOSS
    assert event.healed_by is not None
    assert short(event.healed_by.op) == "nan_to_num"


def test_number_for_the_log_is_not_healed() -> None:
    """Comparisons read it, and it ends in one number."""

    def loss(w: Tensor) -> Tensor:
        with torch.no_grad():
            hits = torch.zeros(3).to(w.dtype)
            ratio = hits.sum() / hits.sum()
            assert torch.isnan(ratio)
        return w.sum()

    trace = step(loss, torch.ones(2).half())
    assert only(trace.events, "div").kind is EventKind.INTENDED
