"""A right gradient is accepted, a wrong one is refused, and each refusal says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from curing import AUTOCAST, PURE, Job
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.prescribe import acceptance
from fp16doctor.prescribe.acceptance import course_reason, improvement_reason, judge
from fp16doctor.prescribe.bench import Bench
from fp16doctor.replay.trajectory import Course
from fp16doctor.replay.trial import Trial, run_trial
from fp16doctor.schema.policy import AS_RUN, BF16, FP32, KeepRule, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.tape import Tape


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3))


def classified(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(cast(torch.randn(8, 4))).float(), torch.randint(0, 3, (8,)))


@pytest.fixture(params=[AUTOCAST, PURE])
def tape(request: pytest.FixtureRequest) -> Tape:
    return Job(net, classified, request.param).tapes()[0]


def changed(trial: Trial, change: Callable[[Tensor], Tensor]) -> Trial:
    return replace(trial, gradients={n: change(g.clone()) for n, g in trial.gradients.items()})


def test_right_gradients_are_accepted(tape: Tape) -> None:
    reference = run_trial(tape, FP32)
    for policy in (AS_RUN, BF16, FP32):
        judgement = judge(tape, reference, run_trial(tape, policy))
        assert judgement.accepted, judgement
        assert judgement.reason == ""
        assert judgement.descent == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda g: -g, 2.0),
        (lambda g: torch.randn_like(g) * g.norm() / g.numel() ** 0.5, 1.4),
        (lambda g: 0.9 * g, 0.1),
    ],
)
def test_wrong_gradients_are_refused(
    tape: Tape, change: Callable[[Tensor], Tensor], error: float
) -> None:
    reference = run_trial(tape, FP32)
    judgement = judge(tape, reference, changed(reference, change))
    assert not judgement.accepted
    assert "of the fp32 descent" in judgement.reason
    assert judgement.gradient_error == pytest.approx(error, rel=0.3)


def test_a_tolerance_widens_what_may_be_missed(tape: Tape) -> None:
    reference = run_trial(tape, FP32)
    short = changed(reference, lambda g: 0.9 * g)
    assert not judge(tape, reference, short).accepted
    assert judge(tape, reference, short, tolerance=3.0).accepted


def test_a_lost_tensor_is_refused_although_the_descent_is_kept(tape: Tape) -> None:
    reference = run_trial(tape, FP32)
    name = min(reference.gradients, key=lambda n: float(reference.gradients[n].norm()))
    lost = replace(reference, gradients=reference.gradients | {name: torch.zeros(16, 4)[:1]})
    lost.gradients[name] = torch.zeros_like(reference.gradients[name])
    judgement = judge(tape, reference, lost)
    assert not judgement.accepted
    assert judgement.reason == "100 % of a parameter's gradient is lost"
    assert judgement.lost == 1


def test_non_finite_values_are_refused_and_counted(tape: Tape) -> None:
    reference = run_trial(tape, FP32)
    bad = replace(reference, nonfinite={"loss": 0, "gradients": 3, "parameters": 1})
    judgement = judge(tape, reference, bad)
    assert (judgement.accepted, judgement.nonfinite) == (False, 4)
    assert judgement.reason == "non-finite values in gradients, parameters"
    judgement = judge(tape, bad, reference)
    assert judgement.reason == "the fp32 replay is not finite either"


def test_an_ill_conditioned_step_cannot_tell() -> None:
    """Attention with scores in the thousands: the gradient turns over with the last place."""

    class Saturated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(4, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x) * 50
            return self.head(torch.sin(h * h) / 10)

    (tape,) = Job(Saturated, classified, dtype=torch.bfloat16).tapes()
    bench = Bench((tape,), 60)
    floor = bench.floor(0, AS_RUN)
    assert floor > acceptance.ILL_CONDITIONED
    (judgement,) = bench.as_run().judgements
    assert judgement.ill_conditioned
    assert judgement.descent is None
    attempt = bench.as_run()
    assert not attempt.accepted  # without consecutive steps nothing tells
    assert "ill-conditioned" in attempt.course_reason
    assert bench.attempt(FP32).accepted


# -- over consecutive steps ----------------------------------------------------------------------


def course(*losses: float, failure: str = "") -> Course:
    return Course("x", list(range(len(losses))), list(losses), [0.0] * len(losses), failure)


def test_courses() -> None:
    fp32 = course(10, 8, 6, 4, 3, 2)
    assert course_reason(fp32, fp32) == ""
    assert course_reason(fp32, course(10, 8, 6, 4, 3.2, 2.4)) == ""
    assert "after 6 steps the loss is 8" in course_reason(fp32, course(10, 9, 9, 8, 8, 8))
    nan = float("nan")
    assert course_reason(fp32, course(10, nan)) == "the trajectory is not finite from step 1 on"
    assert "fp32 trajectory is not finite either, from step 2" in course_reason(
        course(10, 9, nan), course(10, 9, nan)
    )
    assert course_reason(fp32, course(10, 8, failure="step 2: …")) == ""
    assert course_reason(course(-1, -2, -3, -4, -5, -6), course(-1, -2, -3, -4, -5, -6)) == ""


def test_a_run_that_is_sound_must_be_improved() -> None:
    assert improvement_reason(0.1, 0.04) == ""
    assert improvement_reason(0.1, 0.1).startswith("no better than the run itself")
    assert improvement_reason(None, 0.0) != ""
    assert improvement_reason(0.1, 0.0, floor=0.02) == ""
    assert "do not show the fault" in improvement_reason(0.1, 0.0, floor=0.03)
    # A part of the step that makes most of the error makes it, even if noise would do as much.
    assert improvement_reason(0.1, 0.02, floor=0.1, in_part=True) == ""
    assert "do not show the fault" in improvement_reason(0.1, 0.05, floor=0.1, in_part=True)


class Doubling(nn.Module):
    """Its values double with every step: half overflows in the second, fp32 never."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.size = nn.Linear(4, 3), nn.Buffer(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        self.size.mul_(250.0)
        return self.head(x) * self.size.to(x.dtype) / self.size.to(x.dtype)


def loud(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return classified(model, lambda x: x.half())


def test_fine_at_first_and_not_finite_at_step_1_is_refused() -> None:
    tapes = tuple(Job(Doubling, loud, steps=6).tapes())
    alone = Bench(tapes[:1], 60)
    assert alone.as_run().accepted
    bench = Bench(tapes[:1], 60, window=tapes)
    attempt = bench.as_run()
    assert not attempt.accepted
    assert attempt.course_reason == "the trajectory is not finite from step 1 on"
    assert bench.attempt(FP32).accepted


def test_where_fp32_is_not_finite_either_it_is_said() -> None:
    class Diverging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.size = nn.Linear(4, 3), nn.Buffer(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            self.size.mul_(1e13)
            return self.head(x) + self.size * self.size * 0

    tapes = tuple(Job(Diverging, classified, steps=5).tapes())
    bench = Bench(tapes[:1], 60, window=tapes)
    attempt = bench.attempt(BF16)
    assert not attempt.accepted
    assert "fp32 trajectory is not finite either" in attempt.course_reason
    assert bench.verification(attempt).verdict is Verdict.REFUTED


# -- the bench -----------------------------------------------------------------------------------


def test_a_spent_budget_verifies_nothing_and_says_so(tape: Tape) -> None:
    bench = Bench((tape,), 0.0)
    attempt = bench.attempt(BF16)
    proof = bench.verification(attempt)
    assert not attempt.accepted
    assert (proof.verdict, proof.reason) == (Verdict.NOT_VERIFIED, "the time budget was spent")


def test_what_cannot_be_played_is_not_verified(tape: Tape) -> None:
    broken = replace(tape.ops[-1], op="aten.no_such_op.default")
    bench = Bench((replace(tape, ops=(*tape.ops[:-1], broken)),), 60)
    proof = bench.verification(bench.attempt(BF16))
    assert proof.verdict is Verdict.NOT_VERIFIED
    assert "no_such_op" in proof.reason


def test_on_a_step_that_does_not_show_the_fault_nothing_is_verified(tape: Tape) -> None:
    """Its gradient error is that of rounding: fp32 has none, and that proves nothing."""
    bench = Bench((tape,), 60)
    other = PrecisionPolicy("keep", keep=(KeepRule("module:nowhere"),))
    for policy in (other, FP32):
        proof = bench.verification(bench.attempt(policy))
        assert proof.verdict is Verdict.NOT_VERIFIED
        assert "do not show the fault" in proof.reason


def test_candidates_are_judged_at_the_scale_where_a_scaler_settles() -> None:
    """At the run's own scale every gradient overflows; four steps on the scaler has lowered it."""

    def large(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
        return classified(model, cast) * 30

    tapes = tuple(Job(net, large, scaler=2.0**20, steps=6).tapes())
    bench = Bench(tapes[:2], 60, window=tapes)
    assert sum(j.nonfinite for j in bench.as_run().judgements) > 0
    attempt = bench.attempt(PrecisionPolicy("keep", keep=(KeepRule("module:0"),)))
    assert attempt.accepted, (attempt.judgements, attempt.course_reason)
    assert attempt.scale is not None
    assert attempt.scale < 2.0**18
    proof = bench.verification(attempt)
    assert proof.after["loss scale"] == attempt.scale
    assert proof.before["non-finite elements"] > 0
    assert attempt.course is not None
    assert attempt.course.first_nonfinite is None
