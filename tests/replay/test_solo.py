"""Replays under one policy: as the training itself is, run for real under that policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from curing import AUTOCAST, PURE, Job, far, kept, recorded
from torch import Tensor, nn
from torch.nn import functional as F
from whole_steps import TRAININGS

from fp16doctor.replay.trial import Trial, run_trial
from fp16doctor.schema.policy import AS_RUN, BF16, FP16, FP32, KeepRule, PrecisionPolicy
from fp16doctor.schema.tape import Tape

HALF = torch.float16
EPS = torch.finfo(HALF).eps
FORMS = (AUTOCAST, PURE)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ffn = nn.LayerNorm(8), FeedForward()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        return x + self.ffn(x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.b0, self.b1 = nn.Linear(4, 8), Block(), Block()
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.b1(self.b0(self.inp(x)))))


def classified(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    x, y = torch.randn(6, 5, 4), torch.randint(0, 3, (6, 5))
    return F.cross_entropy(model(cast(x)).float().flatten(0, 1), y.flatten())


def close(job: Job, *modules: str, ulps: float = 1.0) -> Trial:
    """A trial of a keep-list gives what the model gives with these modules in fp32."""
    (tape,) = job.tapes()
    trial, real = run_trial(tape, kept(*modules)), job.real(modules)
    assert trial.finite
    assert trial.loss == pytest.approx(real.losses[0] * job.scale * (job.scaler or 1), rel=1e-6)
    assert far(trial.gradients, real.gradients) <= ulps * torch.finfo(job.dtype).eps
    return trial


@pytest.mark.parametrize("name", TRAININGS)
def test_as_run_is_the_run(name: str) -> None:
    """Through the solo player too: every gradient as recorded, no op is born sick."""
    for tape in tapes_of(name):
        trial = run_trial(tape, AS_RUN)
        assert trial.finite
        assert not trial.births
        assert trial.gradients.keys() == set(tape.gradients.values())


def tapes_of(name: str) -> list[Tape]:
    return recorded(TRAININGS[name])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_as_run_equals_the_run_to_the_bit(form: str, dtype: torch.dtype) -> None:
    job = Job(Transformer, classified, form, dtype, scaler=8.0 if form == AUTOCAST else 0.0)
    (tape,), real = job.tapes(), job.real()
    trial = run_trial(tape, AS_RUN)
    assert trial.loss == real.losses[0] * (job.scaler or 1)
    assert far(trial.gradients, real.gradients) == 0


@pytest.mark.parametrize("form", FORMS)
def test_other_formats_equal_the_same_script_in_them(form: str) -> None:
    # Without cross_entropy in half and without attention: its kernel is another one in fp32.
    job = Job(lambda: nn.Sequential(nn.Linear(4, 8), FeedForward(), nn.Linear(8, 3)), classified)
    job = job.but(form=form)
    (tape,) = job.tapes()
    for policy, dtype in ((FP32, torch.float32), (BF16, torch.bfloat16)):
        real = job.but(dtype=dtype).real()
        trial = run_trial(tape, policy)
        # The weights of a pure form were rounded to fp16 already.
        assert trial.loss == pytest.approx(real.losses[0], rel=1e-6 if form == AUTOCAST else 1e-3)
        ulp = torch.finfo(dtype if form == AUTOCAST else torch.bfloat16).eps
        assert far(trial.gradients, real.gradients) <= 2 * ulp
    (tape,) = job.but(dtype=torch.bfloat16).tapes()
    trial, real = run_trial(tape, FP16), job.real()
    assert trial.loss == pytest.approx(real.losses[0], rel=1e-6 if form == AUTOCAST else 1e-2)
    assert far(trial.gradients, real.gradients) <= (2 * EPS if form == AUTOCAST else 0.03)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "modules",
    [("b0.ffn.down",), ("b0.ffn",), ("b1",), ("head",), ("b0.norm",), ("inp",), ("b0.ffn", "b1")],
)
def test_kept_modules(form: str, dtype: torch.dtype, modules: tuple[str, ...]) -> None:
    close(Job(Transformer, classified, form, dtype), *modules)


@pytest.mark.parametrize("form", FORMS)
def test_what_only_the_kept_module_touched_is_exact(form: str) -> None:
    """Loss and logits are fp32 here: the gradient comes back into the head without a rounding."""
    job = Job(Transformer, classified, form, HALF)
    (tape,) = job.tapes()
    trial, real = run_trial(tape, kept("head")), job.real(["head"])
    assert torch.equal(trial.gradients["head.weight"], real.gradients["head.weight"])
    assert far(trial.gradients, real.gradients) == 0


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c0, self.bn, self.c1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.bn(self.c0(x))))
        x = x.transpose(2, 3)[:, :, 1:]
        return self.c1(x).mul_(2).flatten(1)


def images(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return model(cast(torch.randn(5, 1, 8, 8))).float().pow(2).mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("modules", [("c0",), ("bn",), ("act",), ("c1",), ("c0", "bn", "act")])
def test_in_place_ops_views_batch_norm_and_dropout(form: str, modules: tuple[str, ...]) -> None:
    close(Job(Convolutional, images, form, HALF), *modules, ulps=2)


@pytest.mark.parametrize("form", FORMS)
def test_running_statistics_of_a_kept_batch_norm_are_kept_in_fp32(form: str) -> None:
    def loud(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return model(cast(300 + 100 * torch.randn(5, 1, 8, 8))).float().pow(2).mean()

    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c0, self.bn = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)
            nn.init.constant_(self.c0.weight, 90.0)  # a variance of 8e7

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.c0(x)) + 1

    job = Job(Loud, loud, form, HALF)
    (tape,) = job.tapes()
    trial = run_trial(tape, kept("bn"))
    assert trial.finite
    assert run_trial(tape, AS_RUN).finite is (form == AUTOCAST)  # half cannot hold the variance
    assert far(trial.gradients, job.real(["bn"]).gradients) <= 2 * EPS


def test_dropout_drops_the_same_elements_in_every_format() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.drop, self.head = nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(self.inp(x)))

    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return model(cast(torch.ones(1, 4))).float().sum()

    (tape,) = Job(Dropping, loss).tapes()
    wanted = run_trial(tape, AS_RUN).gradients["head.weight"] == 0
    assert 10 < int(wanted.sum()) < 54
    for policy in (FP32, BF16, kept("inp"), kept("drop"), kept("head")):
        assert torch.equal(run_trial(tape, policy).gradients["head.weight"] == 0, wanted), policy


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.rnn, self.head = nn.Linear(4, 6), nn.LSTM(6, 8, batch_first=True), None
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.inp(x))[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("modules", [("inp",), ("head",), ("rnn",)])
def test_recurrent_networks(form: str, modules: tuple[str, ...]) -> None:
    close(Job(Recurrent, classified, form, torch.bfloat16), *modules, ulps=2)


def test_a_penalty_on_a_gradient_is_replayed_under_a_keep_list() -> None:
    for tape in tapes_of("gradient_penalty"):
        wide, mine = run_trial(tape, FP32), run_trial(tape, kept("0", "1", "2"))
        assert far(mine.gradients, wide.gradients) < 0.05


# -- other units than modules --------------------------------------------------------------------


def squashed(x: Tensor) -> Tensor:
    y = x * 300.0  # 9e4
    return y / 400.0


def through_a_function(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    out = model(cast(torch.full((2, 4), 1.0)))
    return squashed(out * 0 + 300).float().mean() + out.float().mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "rules",
    [
        ("function:test_solo.py:squashed",),
        ("function::squashed",),
        (f"line:test_solo.py:{squashed.__code__.co_firstlineno + 1}",),
        ("op:aten.mul",),
        ("op:aten.mul.Tensor",),
    ],
)
def test_functions_lines_and_ops(form: str, rules: tuple[str, ...]) -> None:
    (tape,) = Job(lambda: nn.Linear(4, 4), through_a_function, form).tapes()
    policy = PrecisionPolicy("kept", keep=tuple(map(KeepRule, rules)))
    assert not run_trial(tape, AS_RUN).finite
    trial = run_trial(tape, policy)
    assert trial.finite
    assert trial.loss == pytest.approx(run_trial(tape, FP32).loss, rel=2 * EPS)


def test_what_a_tape_cannot_say_is_an_error_of_ours() -> None:
    from dataclasses import replace

    from fp16doctor.errors import ReplayError

    (tape,) = Job(lambda: nn.Linear(4, 4), through_a_function).tapes()
    broken = replace(tape.ops[3], op="aten.no_such_op.default")
    with pytest.raises(ReplayError, match="no_such_op"):
        run_trial(replace(tape, ops=(*tape.ops[:3], broken, *tape.ops[4:])), FP32)
