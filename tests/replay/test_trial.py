"""One step under one policy: what counts as non-finite, losses, and loss scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far, recorded
from torch import Tensor, nn
from torch.nn import functional as F
from whole_steps import TRAININGS

from fp16doctor.errors import ReplayError
from fp16doctor.replay.parameters import parameter_values
from fp16doctor.replay.scales import scale_of
from fp16doctor.replay.trial import Trial, loss_at, run_disturbed, run_trial
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy

FORMS = (AUTOCAST, PURE)


def scaled(exponent: int) -> PrecisionPolicy:
    return PrecisionPolicy(f"2^{exponent}", scale_factor=2.0**exponent)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))


def classified(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(cast(torch.randn(8, 4))).float(), torch.randint(0, 3, (8,)))


def in_half(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    """A loss that is computed in half, too."""
    return (model(cast(torch.randn(8, 4))).half() ** 2).mean()


# -- the loss scale ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(TRAININGS) - {"hand_written_update"}))
def test_gradients_follow_the_scale(name: str) -> None:
    """Every kind of step is linear in the scale: what is divided out again is the same."""
    for tape in recorded(TRAININGS[name]):
        as_run, double = run_trial(tape, AS_RUN), run_trial(tape, scaled(1))
        assert far(double.gradients, as_run.gradients) < 1e-3
        assert double.loss == as_run.loss


@pytest.mark.parametrize("loss", [classified, in_half])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recorded_at", [1.0, 256.0])
def test_windows_are_those_of_the_training_itself(
    loss: Callable[..., Tensor], form: str, recorded_at: float
) -> None:
    """At every scale from 2^-12 to 2^24: finite or not, and every single gradient."""
    job = Job(net, loss, form, scale=recorded_at)
    (tape,) = job.tapes()
    start = round(torch.tensor(recorded_at).log2().item())
    for exponent in range(-12, 24, 3):
        trial = run_trial(tape, scaled(exponent - start))
        real = job.but(scale=2.0**exponent).real()
        assert (not trial.nonfinite["gradients"]) is all(
            bool(g.isfinite().all()) for g in real.gradients.values()
        ), exponent
        if trial.finite:
            mine = {n: g * 2.0 ** (exponent - start) for n, g in trial.gradients.items()}
            assert far(mine, real.gradients) == 0, exponent


def test_a_product_that_half_cannot_hold_is_not_finite_and_a_lower_scale_makes_it_finite() -> None:
    job = Job(net, in_half, PURE, scale=2.0**22)
    (tape,) = job.tapes()
    assert run_trial(tape, AS_RUN).nonfinite["loss"] == 1
    lower = run_trial(tape, scaled(-14))
    assert lower.finite
    assert lower.loss is not None
    assert lower.loss == pytest.approx(run_trial(tape, FP32).loss, rel=1e-3)


def test_scales_of_a_scaler_a_constant_and_none() -> None:
    for tape in Job(net, classified, scaler=512.0, steps=3).tapes():
        assert scale_of(tape) == 512.0
    for form in FORMS:
        assert scale_of(Job(net, classified, form, scale=64.0).tapes()[0]) == 64.0
        assert scale_of(Job(net, classified, form).tapes()[0]) == 1.0
    assert scale_of(Job(net, classified, scale=3.0).tapes()[0]) == 1.0  # a weight, no scale
    assert scale_of(Job(net, classified, scale=0.5).tapes()[0]) == 1.0


def test_the_scale_of_a_scaler_that_backs_off_is_the_one_of_the_step() -> None:
    def large(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return classified(model, cast) * 5.0

    tapes = Job(net, large, scaler=2.0**20, steps=4).tapes()
    assert [scale_of(t) for t in tapes] == [2.0**20, 2.0**19, 2.0**18, 2.0**17]


def test_a_scaled_loss_that_is_divided_by_the_number_of_batches() -> None:
    def train() -> object:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(4):
                with torch.autocast("cpu", torch.float16):
                    loss = classified(model, lambda x: x)
                (scaler.scale(loss) / 4).backward()
            scaler.step(optimizer)
            scaler.update()
        return model, optimizer, scaler

    assert [scale_of(t) for t in recorded(train)] == [1024.0, 1024.0]


def test_another_scale_is_refused_where_the_script_hands_in_the_gradient() -> None:
    def train() -> object:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.float16):
            out = model(torch.randn(4, 4))
        out.backward(torch.rand_like(out))
        optimizer.step()
        return model, optimizer

    (tape,) = recorded(train)
    assert run_trial(tape, AS_RUN).finite
    with pytest.raises(ReplayError, match="loss scale cannot be tried"):
        run_trial(tape, scaled(2))


# -- what is not finite --------------------------------------------------------------------------


class Loud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quiet, self.loud, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.constant_(self.loud.weight, 3e4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(8).masked_fill(torch.arange(8) > 6, float("-inf"))
        weights = torch.softmax(self.quiet(x).float() + mask, -1)  # a mask is no birth
        return self.head(self.loud(weights.to(x.dtype) * 5) * 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_births_and_sinks(form: str) -> None:
    (tape,) = Job(Loud, classified, form).tapes()
    trial = run_trial(tape, AS_RUN)
    assert not trial.finite
    assert [(s.op, s.module_path) for s in trial.births] == [("aten.addmm.default", "loud")]
    assert trial.nonfinite["loss"] == 1
    assert trial.nonfinite["gradients"] > 0
    wide = run_trial(tape, FP32)
    assert wide.finite
    assert not wide.births


def test_uninitialised_memory_is_no_birth() -> None:
    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            out.copy_(x)
            return self.head(out)

    (tape,) = Job(Filling, classified).tapes()
    (empty,) = [c for c in tape.ops if "empty_like" in c.op]
    poisoned = replace(empty, op="aten.empty_like.default")
    assert not run_trial(replace(tape, ops=tuple(poisoned if c is empty else c for c in tape.ops)),
                         AS_RUN).births  # fmt: skip


# -- losses elsewhere ----------------------------------------------------------------------------


def test_loss_at_other_weights_is_the_loss_there() -> None:
    job = Job(net, classified, dtype=torch.float16)
    (tape,) = job.tapes()
    torch.manual_seed(0)
    model = net()
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    other = {n: p.detach() * 1.5 for n, p in model.named_parameters()}
    wanted = F.cross_entropy(torch.func.functional_call(model, other, (x,)), y)
    assert loss_at(tape, other) == pytest.approx(float(wanted), rel=1e-6)
    assert loss_at(tape, {}) == pytest.approx(run_trial(tape, FP32).loss, rel=1e-6)


@pytest.mark.parametrize("name", ["gradient_penalty", "accumulation", "tied_weights"])
def test_losses_behind_a_backward_and_of_nameless_parameters(name: str) -> None:
    for tape in recorded(TRAININGS[name]):
        reference, weights = run_trial(tape, FP32), parameter_values(tape)
        assert set(reference.gradients) <= set(weights)
        assert loss_at(tape, weights) == pytest.approx(reference.loss, rel=1e-5)
        halved = {n: w / 2 for n, w in weights.items()}
        assert loss_at(tape, halved) != pytest.approx(reference.loss, rel=1e-3)


def test_losses_of_nameless_parameters() -> None:
    def train() -> object:
        w = torch.randn(4, 3).half().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (torch.randn(5, 4).half() @ w).float().pow(2).mean().backward()
            optimizer.step()
        return w, optimizer

    tape = recorded(train)[1]
    reference, weights = run_trial(tape, FP32), parameter_values(tape)
    assert list(reference.gradients) == list(weights)
    halved = {n: w / 2 for n, w in weights.items()}
    assert reference.loss is not None
    assert loss_at(tape, halved) == pytest.approx(reference.loss / 4, rel=1e-5)


def test_noise_is_of_the_size_of_the_format() -> None:
    (tape,) = Job(net, classified).tapes()
    reference = run_trial(tape, FP32)
    fp16, bf16 = (
        far(run_disturbed(tape, f).gradients, reference.gradients) for f in ("fp16", "bf16")
    )
    assert 1e-5 < fp16 < 3e-3 < bf16 < 3e-2


def test_a_whole_number_is_not_disturbed() -> None:
    def far_out(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        place = torch.arange(1000, 1008).half().remainder(7).float()  # bf16 holds every fourth
        return (model(cast(torch.randn(8, 4))).float().sum(1) * place).mean()

    (tape,) = Job(net, far_out).tapes()
    reference = run_trial(tape, FP32)
    assert far(run_disturbed(tape, "bf16").gradients, reference.gradients) < 3e-2


def same(a: Trial, b: Trial) -> bool:
    return a.loss == b.loss and far(a.gradients, b.gradients) == 0


def test_a_trial_leaves_the_tape_and_the_random_state_alone() -> None:
    (tape,) = recorded(TRAININGS["pure_half"])[:1]
    before, state = run_trial(tape, AS_RUN), torch.get_rng_state()
    for policy in (FP32, scaled(3)):
        run_trial(tape, policy)
    run_disturbed(tape, "fp16")
    assert same(run_trial(tape, AS_RUN), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_buffer_that_was_lost_before_the_step_is_not_held_against_it() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("mean", torch.tensor(float("nan")))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            self.mean.mul_(0.9).add_(out.detach().float().mean())
            return out

    def loss(model: nn.Module, cast: object) -> Tensor:
        return model(torch.randn(8, 4)).float().square().mean()

    (tape,) = Job(Counted, loss).tapes()
    assert run_trial(tape, FP32).finite
