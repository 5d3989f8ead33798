"""Digits that cancel in 16 bits: told with a cure that was tried, and silent where all is sound."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import RecommendationStatus, RemedyKind, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind


def scanned(cumulative: bool, steps: int = 6) -> Diagnosis:
    torch.manual_seed(0)
    session = Session(ScanOptions(budget_s=20.0), __file__, ())
    with session:
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(steps):
            x = torch.randn(2, 600, 6)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                lengths = model(x)
            if cumulative:
                ends = lengths.cumsum(1)
                lengths = ends[:, 1:] - ends[:, :-1]
            wanted = x[:, 1:, :1] if cumulative else x[..., :1]
            loss = F.l1_loss(lengths.float(), wanted.abs() + 0.5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return session.finish(Outcome(OutcomeKind.FINISHED))


def test_running_sums_are_kept_in_fp32() -> None:
    diagnosis = scanned(cumulative=True)
    assert [f.code for f in diagnosis.findings] == ["FD306"]
    assert diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED
    (cure,) = (diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions)
    assert cure.remedy.kind is RemedyKind.FP32_KEEP
    assert cure.verification.verdict is Verdict.VERIFIED


def test_a_sound_step() -> None:
    assert not scanned(cumulative=False).findings
