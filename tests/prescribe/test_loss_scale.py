"""The window of loss scales is the one that training itself has."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import pytest
import torch
from curing import AUTOCAST, PURE, Job, recorded
from making import gradient, observed, plain, trace
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.prescribe.acceptance import LOST_TENSOR
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.remedies.loss_scale import _known, propose
from fp16doctor.replay.scales import scale_of
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.prescription import Prescription, Verdict

LOST = Finding("FD201", "gradient-underflow", Severity.ERROR, Fault.UNDERFLOW, "w", "c", None)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def faint(factor: float) -> Callable[..., Tensor]:
    def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
        return F.cross_entropy(model(cast(x)).float(), y) * factor

    return loss


def proposed(bench: Bench) -> Prescription:
    (only,) = propose(Case((LOST,), bench))
    return only


@pytest.mark.parametrize(
    ("form", "factor", "how"),
    [
        (AUTOCAST, 1e-8, {}),
        (PURE, 1e-8, {}),
        (AUTOCAST, 1e-8, {"scale": 4.0}),
        (PURE, 1e-8, {"scale": 4.0}),
        (AUTOCAST, 1e-7, {"scaler": 2.0}),  # torch refuses to unscale fp16 gradients
    ],
)
def test_window(form: str, factor: float, how: dict[str, float]) -> None:
    job = Job(net, faint(factor), form, **how)
    cure = proposed(Bench(tuple(job.tapes()), 60))
    assert cure.verification.verdict is Verdict.VERIFIED
    low, best, high = (cure.remedy.value[k] for k in ("low", "recommended", "high"))
    assert all(log2(x) == int(log2(x)) for x in (low, best, high))
    assert 1 <= low <= best <= high <= 2.0**24
    by_hand = form == PURE  # GradScaler refuses fp16 gradients
    assert (f"({best:.1f} * loss).backward()" in cure.remedy.change) is by_hand
    assert (f"init_scale={best:.1f})" in cure.remedy.change) is not by_hand

    def really(scale: float) -> tuple[bool, float]:
        """Train at a scale: finite or not, and the largest share lost of one gradient."""
        got = job.but(scale=scale, scaler=0.0).real().gradients
        exact = job.but(scale=1.0, scaler=0.0, dtype=torch.float32).real().gradients
        finite = all(bool(g.isfinite().all()) for g in got.values())
        return finite, max(
            float(exact[n][(got[n] == 0) & (exact[n] != 0)].abs().sum() / exact[n].abs().sum())
            for n in exact
        )

    assert really(best) == (True, pytest.approx(0, abs=0.05))
    assert really(high)[0]
    assert high == 2.0**24 or not really(2 * high)[0]
    assert really(low)[1] < LOST_TENSOR
    assert low == 1 or really(low / 4)[1] > 0.1


def test_a_static_scale_that_is_too_high_is_lowered() -> None:
    job = Job(net, faint(300.0), scale=2.0**12)
    cure = proposed(Bench(tuple(job.tapes()), 60))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.value["high"] < 2.0**12
    assert "in place of 4096" in cure.remedy.title
    assert cure.remedy.change.startswith("# in place of 4096, ")
    assert cure.verification.before["non-finite elements"] > 0


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_the_pasted_code_scales_as_the_trial_did(form: str) -> None:
    job = Job(net, faint(1e-8), form)
    cure = proposed(Bench(tuple(job.tapes()), 60))
    best = cure.remedy.value["recommended"]
    torch.manual_seed(0)
    model = net().half() if form == PURE else net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.autocast("cpu", torch.float16, enabled=form == AUTOCAST):
        loss = job.loss(model, job.cast)
    names: dict[str, Any] = {"model": model, "optimizer": optimizer, "loss": loss, "torch": torch}
    exec(cure.remedy.change, names)
    wanted = job.but(scale=best).real().gradients
    trained = names.get("masters") or list(model.parameters())
    for meant, parameter in zip(wanted.values(), trained, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, meant / best)
        assert bool(parameter.grad.any())


def test_without_time_the_scale_with_most_room_of_those_tried_is_told() -> None:
    """The window's search tries some scales; its low end has no room below."""
    bench = Bench(tuple(Job(net, faint(1e-8)).tapes()), 60)
    for exponent in (8, 12, 24):
        assert bench.attempt_scale(2.0**exponent).accepted
    assert _known(bench, 2.0**8, 2.0**24) == 2.0**12


def test_steps_that_ran_at_several_scales_are_tried_at_the_same_one() -> None:
    tapes = tuple(Job(net, faint(30.0), scaler=2.0**20, steps=4).tapes())
    bench = Bench(tapes, 60)
    attempt = bench.attempt_scale(2.0**10)
    assert attempt.accepted
    scales = [t.policy.scale_factor for t in attempt.trials]
    assert scales == [2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7]
    assert not bench.finite_at(2.0**20)


def test_where_no_scale_helps_it_is_refuted_with_its_reason() -> None:
    class Both(nn.Module):
        """One gradient is 2^24 times the other, and more: no scale holds both."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            # The factors are on the far side of the casts to half.
            return self.a(x).float() * 3e4 + self.b(x).float() * 1e-9

    bench = Bench(tuple(Job(Both, faint(1.0)).tapes()), 60)
    cure = proposed(bench)
    assert cure.verification.verdict is Verdict.REFUTED
    assert cure.remedy.title == "another loss scale (1 to 2²⁴)"
    assert cure.verification.reason.startswith(
        "none helps: at every scale something is lost or not finite"
    )
    assert cure.remedy.value is None


def test_the_op_that_no_scale_helps_is_named() -> None:
    class Loud(nn.Module):
        """Infinite in backward at every scale: the gradient takes a factor of 1e6 in fp16."""

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).float() * 1e6

    cure = proposed(Bench(tuple(Job(Loud, faint(1.0)).tapes()), 60))
    assert cure.verification.verdict is Verdict.REFUTED
    assert "inf or NaN at scale 1 already" in cure.verification.reason
    assert "`aten." in cure.verification.reason


def test_a_spent_budget_is_no_refusal() -> None:
    cure = proposed(Bench(tuple(Job(net, faint(1e-8)).tapes()), 0.0))
    assert cure.verification.verdict is Verdict.NOT_VERIFIED
    assert cure.verification.reason == "the time budget was spent"


def test_a_script_that_hands_in_its_gradient_is_not_tried() -> None:
    def train() -> object:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.float16):
            out = model(torch.randn(4, 4))
        out.backward(torch.rand_like(out) * 1e-7)
        optimizer.step()
        return model, optimizer

    cure = proposed(Bench(tuple(recorded(train)), 60))
    assert cure.verification.verdict is Verdict.NOT_VERIFIED
    assert "gradient of the script's own" in cure.verification.reason


def test_it_is_proposed_for_gradients_only() -> None:
    assert not list(propose(Case((), Bench((), 1.0))))
    findings = diagnose(observed(trace(gradient()), steps=plain(1)))[0]
    assert not list(propose(Case(findings, None)))


def test_a_scaler_that_starts_at_no_power_of_two_has_its_own_scale() -> None:
    tapes = tuple(Job(net, faint(30.0), scaler=3.0 * 2.0**20, steps=2).tapes())
    assert [scale_of(t) for t in tapes] == [3.0 * 2.0**20, 3.0 * 2.0**19]
    cure = proposed(Bench(tapes, 60))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert cure.remedy.value["high"] < 2.0**20


def test_a_factor_that_is_no_scale_is_none() -> None:
    def weighted(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return faint(1.0)(model, cast) * torch.full((), 0.3)

    assert [scale_of(t) for t in Job(net, weighted).tapes()] == [1.0]


def test_the_window_ends_where_the_steps_behind_the_kept_ones_overflow() -> None:
    def losses() -> Callable[..., Tensor]:
        sizes = iter([1.0, 1.0, 2.0, 4.0, 8.0, 16.0] * 8)
        return lambda model, cast: faint(next(sizes))(model, cast)

    tapes = Job(net, losses(), scaler=2.0**-30, steps=6).tapes()
    alone = proposed(Bench((tapes[0],), 60)).remedy.value
    followed = proposed(Bench((tapes[0],), 60, window=tuple(tapes))).remedy.value
    assert followed is not None
    assert alone["high"] / 32 <= followed["high"] < alone["high"]


def test_a_scale_that_an_earlier_run_left_is_put_right_behind_its_state() -> None:
    tapes = Job(net, faint(1.0), scaler=2.0**-30, steps=6).tapes()
    cure = proposed(Bench((tapes[0],), 60, window=tuple(tapes)))
    assert cure.verification.verdict is Verdict.VERIFIED
    assert "in place of 2⁻³⁰" in cure.remedy.title
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-30)
    exec(cure.remedy.change, {"scaler": scaler})
    assert scaler.get_scale() == cure.remedy.value["recommended"]


def test_a_scale_that_fell_below_one_is_still_a_scale() -> None:
    tapes = Job(net, faint(30.0), scaler=0.25, steps=2).tapes()
    assert [scale_of(t) for t in tapes] == [0.25, 0.25]
    halved = Job(net, lambda model, cast: faint(1.0)(model, cast) * 0.5).tapes()
    assert scale_of(halved[0]) == 1.0  # a constant below 1 is a weight of the loss
