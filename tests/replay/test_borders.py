"""Where fp32 and 16 bits meet: values and gradients are cast where autograd casts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far, kept
from torch import Tensor, nn

from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import AS_RUN

EPS = torch.finfo(torch.float16).eps
FORMS = (AUTOCAST, PURE)


class Scaled(nn.Module):
    """The gradient with respect to ``inner``'s input is ``factor`` times the one of its output."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.inner, self.factor = nn.Linear(1, 1), Times(factor), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def summed(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return model(cast(torch.ones(1, 1))).float().sum() * 64


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_that_overflows_at_the_border_is_seen(form: str) -> None:
    """The product fits and is kept; its gradient, 64 · 2000, does not fit where fp16 goes on."""
    job = Job(lambda: Scaled(2000.0), summed, form)
    (tape,), real = job.tapes(), job.real(["inner"])
    assert any(not g.isfinite().all() for g in real.gradients.values())
    trial = run_trial(tape, kept("inner"))
    assert not trial.finite
    assert trial.nonfinite["loss"] == 0
    assert run_trial(tape, kept("inner", "first")).finite


@pytest.mark.parametrize("form", FORMS)
def test_no_gradient_is_cast_that_autograd_would_not_cast(form: str) -> None:
    """What leaves a kept module is fp32, and so is its gradient: 70000 is no overflow there."""

    def large(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return model(cast(torch.ones(1, 1))).float().sum() * 70000

    job = Job(lambda: nn.Sequential(nn.Linear(1, 1), Times(1.0)), large, form)
    (tape,), real = job.tapes(), job.real(["0"])
    assert all(g.isfinite().all() for g in real.gradients.values())
    trial = run_trial(tape, kept("0"))
    assert trial.finite
    assert far(trial.gradients, real.gradients) == 0
    assert not run_trial(tape, AS_RUN).finite


@pytest.mark.parametrize("form", FORMS)
def test_an_op_between_two_kept_modules_goes_on_in_fp32(form: str) -> None:
    """As autocast has it: relu is on no list, so the value and its gradient stay in fp32."""

    class Sandwich(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
            nn.init.constant_(self.a.weight, 300.0)
            nn.init.constant_(self.b.weight, 300.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)))  # 9e4, and a gradient of 300 · 300

    def mean(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return model(cast(torch.ones(1, 1))).float().sum() * 300

    job = Job(Sandwich, mean, form)
    (tape,), real = job.tapes(), job.real(["a", "b"])
    trial = run_trial(tape, kept("a", "b"))
    assert trial.finite
    assert far(trial.gradients, real.gradients) <= EPS
    assert not run_trial(tape, kept("b")).finite
