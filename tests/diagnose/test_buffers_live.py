"""A buffer that is infinite on purpose, and one that was poisoned, in real trainings."""

from __future__ import annotations

import torch
from torch import nn

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.recording import Outcome, OutcomeKind


def scanned(model: nn.Module, x: torch.Tensor, steps: int = 2) -> Diagnosis:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = Session(ScanOptions(budget_s=0.0), "train.py", ())
    with session:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return session.finish(Outcome(OutcomeKind.FINISHED))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.lin(x) @ x.t() + self.mask
        return scores.softmax(-1) @ x


def test_a_mask_buffer_of_inf_is_no_finding() -> None:
    torch.manual_seed(0)
    findings = scanned(Masked(), torch.randn(4, 4)).findings
    assert all(f.severity is Severity.NOTE for f in findings)


def test_a_running_mean_that_is_nan_from_the_start_is_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].running_mean.fill_(float("nan"))
    found = [f for f in scanned(model, torch.randn(8, 4)).findings if f.code == "FD106"]
    assert len(found) == 1
    assert "`1.running_mean` is not finite" in found[0].what
