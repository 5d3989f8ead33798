"""An optimizer that evaluates the model several times a step: its first evaluation is examined."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import RecommendationStatus, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind


def diagnosis(size: float) -> Diagnosis:
    session = Session(ScanOptions(budget_s=30), __file__, ())
    with session:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
        x = torch.randn(32, 4)
        y = x.square().sum(1, keepdim=True) * size

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(x) - y.half()).square().mean()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
    return session.finish(Outcome(OutcomeKind.FINISHED))


def test_an_overflow_in_a_closure_is_cured_on_its_first_evaluation() -> None:
    found = diagnosis(size=300.0)
    assert found.findings[0].code == "FD101"
    assert found.findings[0].site is not None
    assert found.findings[0].site.step == 0
    assert found.recommendation.status is RecommendationStatus.PRESCRIBED
    assert Verdict.VERIFIED in {p.verification.verdict for p in found.prescriptions}
    assert "FD113" not in {f.code for f in found.findings}


def test_a_sound_closure_is_left_alone() -> None:
    found = diagnosis(size=1.0)
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED
