"""The error budget of a scan: of the leading finding's step, within the time for cures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fp16doctor.pipeline import ScanOptions, Session, blaming
from fp16doctor.report.html import render_html
from fp16doctor.report.terminal import render_terminal
from fp16doctor.schema.codec import from_json, to_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import Outcome, OutcomeKind


class Coarse(nn.Module):
    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.inp, self.out, self.gain = nn.Linear(8, 32), nn.Linear(32, 4), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x) * self.gain
        return self.out(((h * 8).round().bfloat16() / 8).clamp(-5, 5).exp().half() + h)


def scanned(gain: float = 1.0, budget_s: float = 20.0) -> Diagnosis:
    session = Session(ScanOptions(budget_s=budget_s), __file__, ())
    with session:
        model = Coarse(gain).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.randn(16, 8).half()).float() ** 2).mean().backward()
            optimizer.step()
    return session.finish(Outcome(OutcomeKind.FINISHED))


def shown(diagnosis: Diagnosis, *, verbose: bool) -> str:
    return render_terminal(diagnosis, color=False, width=100, outputs=None, verbose=verbose)


def test_a_sound_run_is_shared_out_on_its_worst_step() -> None:
    diagnosis = scanned()
    budget = diagnosis.error_budget
    assert budget is not None
    assert budget.step in (0, 1)
    assert diagnosis.blame[0].site.op == "aten.exp.default"
    assert from_json(to_json(diagnosis)) == diagnosis
    assert budget.sentence in shown(diagnosis, verbose=True).replace("\n  ", " ")
    assert "shares of the error" not in shown(diagnosis, verbose=False)
    page = render_html(diagnosis)
    assert "<h2>Error budget</h2>" in page
    assert '<rect class="bar"' in page


def test_an_overflow_is_shared_out_on_its_own_step() -> None:
    diagnosis = scanned(gain=1e5)
    budget = diagnosis.error_budget
    assert budget is not None
    assert budget.quantity == "non-finite gradient elements"
    site = diagnosis.findings[0].site
    assert site is not None
    assert budget.step == site.step
    assert diagnosis.blame[0].site.index == site.index


def test_no_time_no_budget() -> None:
    diagnosis = scanned(budget_s=0.0)
    assert diagnosis.blame == ()
    assert diagnosis.replay.steps == (0, 1)  # examined all the same


def test_a_fault_of_ours_costs_the_budget_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(blaming, "error_budget", broken)
    diagnosis = scanned(gain=1e5)
    assert diagnosis.blame == ()
    assert diagnosis.findings
    assert any(w.slug == "blame-failed" for w in diagnosis.warnings)
