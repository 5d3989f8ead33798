"""Time for trials: what counts, what a spent budget leaves, and that the report says so."""

from __future__ import annotations

import pytest
import torch
from curing import PURE, Job
from deep import Deep, classified
from test_recommendation import bench, finding
from torch import Tensor, nn

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.prescribe import time_budget
from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.prescribe.outlook import outlook
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.time_budget import TimeBudget
from fp16doctor.replay import dataflow
from fp16doctor.replay.lifetimes import spent
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.policy import BF16, FP32
from fp16doctor.schema.prescription import RecommendationStatus, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind


class Watch:
    """A clock that is set by hand."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    clock = Watch()
    monkeypatch.setattr(time_budget, "time", clock)
    return clock


def test_only_what_is_timed_counts_and_once(watch: Watch) -> None:
    budget = TimeBudget(10)
    watch.now += 5
    assert budget.left_s == 10
    with budget.timing():
        watch.now += 3
        assert budget.left_s == 7
        with budget.timing():
            watch.now += 3
    assert budget.left_s == 4
    assert not budget.over
    with budget.timing():
        watch.now += 4
        assert budget.over
    assert budget.left_s == 0


def test_a_failure_inside_is_paid_for(watch: Watch) -> None:
    budget = TimeBudget(10)

    def fails() -> None:
        with budget.timing():
            watch.now += 8
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert budget.left_s == 2


def test_a_candidate_is_given_up_between_its_steps(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large step one trial may take long: what is left after it is not begun."""
    tapes = tuple(Job(lambda: Deep(1, 1), classified, steps=3).tapes())
    patient, hasty = Bench(tapes, 60), Bench(tapes, 60)
    assert len(patient.attempt(FP32).trials) == 3
    from fp16doctor.prescribe import bench as benches

    real = benches.run_trial
    played: list[int] = []

    def slow(tape, policy):  # type: ignore[no-untyped-def]
        played.append(tape.step)
        watch.now += 40
        return real(tape, policy)

    monkeypatch.setattr(benches, "run_trial", slow)
    attempt = hasty.attempt(BF16)
    assert attempt.failure == BUDGET_SPENT
    assert len(played) < 6  # candidate and reference of three steps
    assert hasty.verification(attempt).verdict is Verdict.NOT_VERIFIED
    assert hasty.untried == ("bf16",)


def test_what_is_left_is_named_once_each() -> None:
    found, answer = plan((finding(),), bench(1, 1e6, 1, budget=0.0))
    assert found
    assert answer.status is RecommendationStatus.NONE_FOUND
    spent_bench = bench(1, 1e6, 1, budget=0.0)
    plan((finding(), finding("FD201", Fault.UNDERFLOW)), spent_bench)
    assert spent_bench.untried[:2] == ("bf16", "fp32")
    assert set(spent_bench.untried) == {"bf16", "fp32", "keep-list", "loss scale"}


def test_what_was_begun_leaves_further_ones(watch: Watch) -> None:
    some = bench(1, 1e6, 1)
    some.attempt_scale(2.0)
    with some.timing():
        watch.now += 100
    some.attempt_scale(4.0)
    some.attempt(FP32)
    assert some.untried == ("further loss scales", "fp32")


def test_storage_is_left_as_well() -> None:
    spent_bench = bench(1, budget=0.0)
    found, _ = plan((finding("FD301", Fault.LOST_UPDATE),), spent_bench)
    assert [p.verification.reason for p in found if p.remedy.value == "fp32"] == [BUDGET_SPENT]
    assert spent_bench.untried == ("fp32 storage",)


def test_no_format_is_foretold_when_time_is_over() -> None:
    job = Job(lambda: Deep(1), classified, PURE, dtype=torch.float32)
    told = outlook(tuple(job.tapes()), lambda: True)
    assert set(told) == {"fp16", "bf16"}
    for name, entry in told.items():
        assert entry.status == "unknown"
        assert entry.sentence == f"the time budget was spent before {name} was tried"


# -- the whole scan --------------------------------------------------------------------------------


class Overflows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inp(x) * 1e6 / 1e6)) * 1e6


def scanned(budget_s: float) -> Diagnosis:
    session = Session(ScanOptions(budget_s=budget_s), __file__, ())
    with session:
        model = Overflows().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 8).half()).float().square().mean().backward()
            optimizer.step()
    return session.finish(Outcome(OutcomeKind.FINISHED))


def test_without_time_a_run_is_examined_all_the_same() -> None:
    diagnosis = scanned(0.0)
    assert diagnosis.findings
    assert diagnosis.replay.steps
    assert diagnosis.outlook == {}
    assert diagnosis.error_budget is None
    (caution,) = [w for w in diagnosis.warnings if w.slug == "no-time-budget"]
    assert caution.message.startswith("no cure was tried: a time budget of 0 s has no room for it")
    assert all(p.verification.verdict is Verdict.NOT_VERIFIED for p in diagnosis.prescriptions)


def test_a_budget_that_runs_out_says_what_was_left() -> None:
    diagnosis = scanned(1e-6)
    (caution,) = [w for w in diagnosis.warnings if w.slug == "time-budget-spent"]
    assert "left untried: " in caution.message
    assert "bf16" in caution.message
    assert diagnosis.error_budget is not None
    assert diagnosis.error_budget.reason.startswith("the time budget was spent")


# -- steps of many losses --------------------------------------------------------------------------


def test_a_step_of_many_backwards_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(model: nn.Module, cast: object) -> Tensor:
        for _ in range(20):
            classified(model, cast).backward()  # type: ignore[arg-type]
        return classified(model, cast)  # type: ignore[arg-type]

    (tape,) = Job(lambda: Deep(1), many).tapes()
    assert len(tape.losses) == 21
    built: list[int] = []

    class Counted(dataflow.Producers):
        def __init__(self, ops):  # type: ignore[no-untyped-def]
            built.append(len(ops))
            super().__init__(ops)

    monkeypatch.setattr(dataflow, "Producers", Counted)
    dataflow._remembered.cache_clear()
    spent(tape)
    assert len(built) == 1
