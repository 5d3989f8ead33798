"""Consecutive steps under one policy: the losses the script itself has under it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.replay.scales import scale_of
from fp16doctor.replay.trajectory import follow
from fp16doctor.schema.policy import AS_RUN, BF16, FP32, KeepRule, PrecisionPolicy

FORMS = (AUTOCAST, PURE)
STEPS = 6
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.2, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02}),
    "adamw_foreach": (torch.optim.AdamW, {"lr": 0.02, "foreach": True}),
    "adamw_fused": (torch.optim.AdamW, {"lr": 0.02, "fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 3)
    )


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 3))


def classified(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.randn(16, 4)
    return F.cross_entropy(model(cast(x)).float(), (x[:, 0] > 0).long())


def job(optimizer: str = "sgd", form: str = AUTOCAST, **more: Any) -> Job:
    make, options = OPTIMIZERS[optimizer]
    if form == PURE and optimizer != "sgd":
        options = options | {"eps": 1e-4}  # half makes 0 of 1e-8
    return Job(normed, classified, form, optimizer=make, options=options, steps=STEPS).but(**more)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_as_run_it_has_the_losses_of_the_run(optimizer: str, form: str) -> None:
    training = job(optimizer, form)
    course = follow(tuple(training.tapes()), AS_RUN)
    assert course.losses == training.real().losses
    assert course.steps == list(range(STEPS))
    assert course.step_lengths == [0.0] * STEPS
    assert course.failure == ""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_other_formats_it_has_the_losses_of_the_script_in_them(optimizer: str) -> None:
    training = job(optimizer)
    tapes = tuple(training.tapes())
    for policy, dtype, rel in ((FP32, torch.float32, 1e-5), (BF16, torch.bfloat16, 1e-5)):
        real = training.but(dtype=dtype).real().losses
        assert follow(tapes, policy).losses == pytest.approx(real, rel=rel)


def test_a_pure_form_is_followed_in_fp32() -> None:
    """Weights start where half had rounded them to."""
    training = job("adamw", PURE, model=plain)
    real = training.but(dtype=torch.float32, model=lambda: plain().half().float()).real().losses
    assert follow(tuple(training.tapes()), FP32).losses == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adamw_foreach"])
@pytest.mark.parametrize("form", FORMS)
def test_a_keep_list_has_the_losses_of_the_script_with_it(optimizer: str, form: str) -> None:
    training = job(optimizer, form)
    policy = PrecisionPolicy("kept", keep=(KeepRule("module:0"), KeepRule("module:1")))
    real = training.real(["0", "1"]).losses
    assert follow(tuple(training.tapes()), policy).losses == pytest.approx(real, rel=2e-3)


def test_running_statistics_and_averages_are_carried() -> None:
    """Evaluation on them after every step enters the next loss."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = normed()
            self.register_buffer("mean", torch.zeros(3))
            self.mean: Tensor

        def forward(self, x: Tensor) -> Tensor:
            out = self.net(x)
            with torch.no_grad():
                self.mean.lerp_(out.float().mean(0), 0.5)
            return out + 10 * self.mean.to(out.dtype) + self.net[1].running_mean.sum()

    def after(model: Any, ema: Any) -> Any:
        weights = [p.detach() for p in model.parameters()]
        if ema is None:
            return [w.clone() for w in weights]
        with torch.no_grad():
            torch._foreach_lerp_(ema, weights, 0.5)
            for w, e in zip(weights, ema, strict=True):  # as a lookahead optimizer does
                w.lerp_(e, 0.5)
        return ema

    training = job("adamw", model=Averaged, after=after)
    real = training.but(dtype=torch.float32).real().losses
    tapes = tuple(training.tapes())
    assert follow(tapes, FP32).losses == pytest.approx(real, rel=1e-5)
    assert follow(tapes, AS_RUN).losses == training.real().losses


def test_a_changed_loss_scale_changes_no_update() -> None:
    training = job("sgd", scaler=1024.0)
    tapes = tuple(training.tapes())
    as_run = follow(tapes, AS_RUN)
    assert as_run.losses == training.real().losses
    for factor in (0.25, 4.0):
        course = follow(tapes, PrecisionPolicy("scaled", scale_factor=factor))
        assert course.losses == pytest.approx(as_run.losses, rel=1e-3)


# -- steps without an optimizer ------------------------------------------------------------------


def loud(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return classified(model, cast) * 30


def test_skipped_steps_follow_the_gradient() -> None:
    training = job("sgd", model=plain, loss=loud, scaler=2.0**22)
    tapes = tuple(training.tapes())
    skipped = [not any("add_" in c.op and c.site.module_path for c in t.ops) for t in tapes]
    assert skipped[0]
    assert scale_of(tapes[0]) == 2.0**22
    reference = follow(tapes, FP32)
    assert len(reference.losses) == STEPS
    assert [length > 0 for length in reference.step_lengths] == skipped
    assert all(x < 100 for x in reference.losses)
    course = follow(tapes, BF16, reference)
    assert course.step_lengths == reference.step_lengths
    assert course.losses == pytest.approx(reference.losses, rel=0.05)
    as_run = follow(tapes, AS_RUN, reference)
    assert as_run.first_nonfinite == 1  # the inf gradient of step 0 went into the weights
    lower = follow(tapes, PrecisionPolicy("scale", scale_factor=2.0**-12), reference)
    assert lower.losses == pytest.approx(reference.losses, rel=0.05)


def test_the_step_length_lowers_the_loss() -> None:
    """A step along the gradient is as long as fp32 bears, on the same batch."""

    def same(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(-1, 1, 64).reshape(16, 4)
        return F.cross_entropy(model(cast(x)).float(), torch.arange(16) // 8)

    tapes = tuple(job("sgd", model=plain, loss=same, scaler=2.0**40).tapes())
    losses = follow(tapes, FP32).losses
    assert len(losses) == STEPS
    assert all(b < a for a, b in pairwise(losses))


# -- courses that end ----------------------------------------------------------------------------


class Growing(nn.Module):
    """Its values grow by a factor of 8 a step, in every format."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.register_buffer("size", torch.tensor(start))
        self.size: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.size.mul_(8.0)
        return self.head(x * self.size.to(x.dtype)) * 0.001


def mean_square(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return model(cast(torch.ones(4, 4))).float().pow(2).mean()


def test_fine_at_first_and_not_finite_later() -> None:
    def half(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return mean_square(model, lambda x: x.half())

    tapes = tuple(job("sgd", model=lambda: Growing(100.0), loss=half, options={"lr": 0.0}).tapes())
    course = follow(tapes, AS_RUN)
    assert course.first_nonfinite is not None
    assert course.first_nonfinite > 1
    assert course.steps[-1] == course.first_nonfinite
    assert follow(tapes, FP32).first_nonfinite is None


def test_what_cannot_be_played_ends_the_course_and_is_said() -> None:
    from dataclasses import replace

    tapes = job("sgd").tapes()
    ops = list(tapes[2].ops)
    ops[5] = replace(ops[5], op="aten.no_such_op.default")
    tapes[2] = replace(tapes[2], ops=tuple(ops))
    course = follow(tuple(tapes), FP32)
    assert course.steps == [0, 1]
    assert course.failure.startswith("step 2: ")
    assert "no_such_op" in course.failure
