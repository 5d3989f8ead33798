"""``fp16doctor.profile(on_trouble=…)``: told once, at once, and raised where that is asked for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import Loop, ranges
from torch import nn

import fp16doctor
from fp16doctor.profiler import TroubleError
from fp16doctor.schema.codec import from_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.recording import OutcomeKind


def test_the_step_after_trouble_is_taped_and_trouble_is_told_once() -> None:
    told: list[Diagnosis] = []
    loop = Loop()
    with fp16doctor.profile(loop.model, on_trouble=told.append) as prof:
        for step in range(10):
            loop.step(math.inf if step == 5 else 1.0)
    assert [s.step for s in prof.diagnosis.steps if s.n_ops] == [0, 1, 2, 6]
    assert len(told) == 1
    (warning,) = [w for w in told[0].warnings if w.slug == "trouble-not-taped"]
    assert "step 5" in warning.message
    assert ranges(prof.diagnosis)["0", "output"].first_nonfinite == 5


def test_an_error_on_a_taped_step_is_found_and_raised_if_wanted() -> None:
    loop, prof = Loop(dtype=None), fp16doctor.profile(on_trouble="raise")
    loop.model.half()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.0)  # type: ignore[assignment]
    done = []

    def train() -> None:
        with prof:
            for step in range(5):
                loop.optimizer.zero_grad()
                factor = 6e4 if step == 1 else 1.0
                (loop.model(torch.ones(16, 4).half()) * factor).square().mean().backward()
                loop.optimizer.step()
                done.append(step)

    with pytest.raises(TroubleError, match=r"stopped.*FD1.*\[trouble\]") as caught:
        train()
    assert done == [0, 1]
    assert caught.value.diagnosis.findings[0].site.step == 1
    assert prof.diagnosis.findings[0].site.source is not None
    assert prof.diagnosis.run.outcome.kind is OutcomeKind.RAISED


def unscaled_half(**options: Any) -> fp16doctor.profile:
    """A model in fp16 without a loss scale, and a loss of inf in a step that is not taped."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).half()
    optimizer, prof = torch.optim.SGD(model.parameters(), lr=0.01), fp16doctor.profile(**options)
    with prof:
        for step in range(7):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 4).half()).float().square().mean()
            (loss * (math.inf if step == 5 else 1.0)).backward()
            optimizer.step()
    return prof


def test_trouble_is_told_rather_than_a_note() -> None:
    told: list[Diagnosis] = []
    unscaled_half(on_trouble=told.append)
    assert told[0].findings[0].severity is Severity.NOTE
    with pytest.raises(TroubleError, match="step 5, which was not taped: the gradients of"):
        unscaled_half(on_trouble="raise")


def test_the_switch_that_is_suggested_tapes_every_step() -> None:
    with pytest.raises(TroubleError) as caught:
        unscaled_half(on_trouble="raise")
    assert "profile(model, optimizer, every_step=True)" in str(caught.value)
    found = unscaled_half(every_step=True)
    assert all(s.n_ops for s in found.diagnosis.steps)
    assert found.diagnosis.findings[0].severity is Severity.ERROR


def infinite_at(bad: int, prof: Any, steps: int = 6) -> None:
    loop = Loop()
    with prof:
        for step in range(steps):
            loop.step(math.inf if step == bad else 1.0)


def test_trouble_in_the_very_last_step_is_raised_at_the_end() -> None:
    with pytest.raises(TroubleError):
        infinite_at(5, fp16doctor.profile(on_trouble="raise"))


def test_a_report_on_trouble_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, early = tmp_path / "run.json", []
    prof = fp16doctor.profile(on_trouble="report", output=target)
    forward = Loop.step

    def step(loop: Loop, factor: float = 1.0) -> float:
        if target.exists():
            early.append(len(from_json(target.read_text()).steps))
        return forward(loop, factor)

    monkeypatch.setattr(Loop, "step", step)
    with pytest.warns(RuntimeWarning, match="step 4"):
        infinite_at(4, prof, steps=7)
    assert early == [5]
    assert len(from_json(target.read_text()).steps) == 7


def test_a_fault_in_the_callback_reaches_the_loop() -> None:
    def callback(diagnosis: Diagnosis) -> None:
        raise RuntimeError("stop the run")

    with pytest.raises(RuntimeError, match="stop the run"):
        infinite_at(3, fp16doctor.profile(on_trouble=callback))
