"""16-bit tensors beside the weights that follow at first and stand still at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import RecommendationStatus, RemedyKind, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind

HALF = torch.bfloat16


def scanned(train: Callable[[], object], budget: float = 0.0) -> Diagnosis:
    session = Session(ScanOptions(budget_s=budget), __file__, ())
    with session:
        held = train()  # noqa: F841  # as a script does until its end
    return session.finish(Outcome(OutcomeKind.FINISHED))


def trained(after: Callable[[nn.Module, Tensor], None], steps: int) -> object:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.ones(8, 4)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        after(model, x)
    return model


def named(diagnosis: Diagnosis, code: str) -> list[Finding]:
    return [f for f in diagnosis.findings if f.code == code]


def test_a_sum_stops_taking_what_is_added() -> None:
    total = torch.full((), 128.0, dtype=HALF)

    def add(model: nn.Module, x: Tensor) -> None:
        total.add_(x[0, 0].to(HALF))

    diagnosis = scanned(lambda: trained(add, 300), budget=20.0)
    (finding,) = named(diagnosis, "FD302")
    assert "stands still from step 149 on: 0 % of the updates arrives" in finding.what
    assert diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED
    (cure,) = (diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions)
    assert cure.remedy.kind is RemedyKind.STORAGE
    assert cure.verification.verdict is Verdict.VERIFIED


def test_an_average_bound_anew_each_step_is_a_state() -> None:
    class Tracker:
        mean = torch.full((16,), 1.0, dtype=HALF)

        def update(self, model: nn.Module, x: Tensor) -> None:
            self.mean = self.mean * 0.999 + 0.001 * (2 * x[0, 0]).to(HALF)

    held = Tracker()
    diagnosis = scanned(lambda: trained(held.update, 30), budget=20.0)
    (finding,) = named(diagnosis, "FD302")
    assert "1 of 1 bf16 tensor beside the weights lose their updates" in finding.what
    assert diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED


def test_a_state_that_is_bound_anew_before_the_model_is_called() -> None:
    def train() -> object:
        model, count = nn.Linear(4, 1), torch.full((), 256.0, dtype=HALF)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(12):
            count = count + 1
            optimizer.zero_grad()
            (model(torch.ones(8, 4)) / count.float()).square().mean().backward()
            optimizer.step()
        return model

    (finding,) = named(scanned(train), "FD302")
    assert "lose their updates" in finding.what


def test_an_average_near_its_target_has_not_stopped() -> None:
    mean = torch.zeros(16, dtype=HALF)

    def follow(model: nn.Module, x: Tensor) -> None:
        mean.mul_(0.9).add_(0.1 * x[0, 0].to(HALF))

    assert not scanned(lambda: trained(follow, 210)).findings


def test_a_batch_cast_anew_each_step_is_no_state() -> None:
    kept = {}

    def cast(model: nn.Module, x: Tensor) -> None:
        kept["batch"] = x.to(HALF)
        kept["halved"] = kept["batch"] * 0.999

    assert not scanned(lambda: trained(cast, 12)).findings


def test_the_copy_of_a_model_stands_beside_the_weights() -> None:
    averages: list[AveragedModel] = []

    def average(model: nn.Module, x: Tensor) -> None:
        if not averages:
            copied = deepcopy(model).to(HALF)
            averages.append(AveragedModel(copied, avg_fn=lambda a, p, n: a + (p - a) * 1e-3))
            averages[0].update_parameters(model)
            return
        with torch.no_grad():
            model.weight.mul_(1.5)
        averages[0].update_parameters(model)

    diagnosis = scanned(lambda: trained(average, 6))
    assert named(diagnosis, "FD302")
    assert not named(diagnosis, "FD301")


def test_what_carries_the_rounding_error_along_is_no_state_that_stays_behind() -> None:
    def train() -> object:
        torch.manual_seed(0)
        model = nn.Linear(16, 4).to(HALF)
        lost = [torch.zeros_like(p) for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        target = torch.randn(16, 4).to(HALF)
        for _ in range(40):
            x = torch.randn(32, 16, dtype=HALF)
            optimizer.zero_grad()
            (model(x) - x @ target).float().square().mean().backward()
            with torch.no_grad():
                for p, c in zip(model.parameters(), lost, strict=True):
                    assert p.grad is not None
                    step = c - 1e-4 * p.grad
                    new = p + step
                    c.copy_(step - (new - p))
                    p.copy_(new)
        return model, lost

    assert not named(scanned(train), "FD302")
