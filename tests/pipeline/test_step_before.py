"""A learning rate that is let loose late: the step in front of the jump is what has to be seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.prescription import RecommendationStatus, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind

LOOSE = 14  # the step from which on the rate is another one


def scanned(factor: float, dtype: torch.dtype = torch.float16) -> Diagnosis:
    session = Session(ScanOptions(budget_s=5.0), __file__, ())
    with session:
        held = train(factor, dtype)  # noqa: F841  # as a script does until its end
    return session.finish(Outcome(OutcomeKind.FINISHED))


def train(factor: float, dtype: torch.dtype) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=dtype is torch.float16)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: factor if s >= LOOSE else 1)
    for _ in range(LOOSE + 10):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=dtype):
            loss = F.mse_loss(model(x).float(), 4 * x.sum(1, keepdim=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_update_in_front_of_the_jump_is_replayed_and_named(dtype: torch.dtype) -> None:
    diagnosis = scanned(1000.0, dtype)
    finding = diagnosis.findings[0]
    assert finding.code == "FD116"
    assert finding.site is not None
    assert finding.site.step == LOOSE
    assert finding.site.source is not None
    assert finding.site.source.text == "scaler.step(optimizer)"
    assert "1/1000 of it" in finding.cause or "1/100 of it" in finding.cause
    assert "-fold or more" in finding.advice
    if finding.severity is Severity.ERROR:
        assert diagnosis.recommendation.status is RecommendationStatus.NOT_PRECISION
        verified = [
            p for p in diagnosis.prescriptions if p.verification.verdict is Verdict.VERIFIED
        ]
        assert not verified


def test_a_rate_that_holds_is_no_finding() -> None:
    assert not [f for f in scanned(1.5).findings if f.code == "FD116"]
