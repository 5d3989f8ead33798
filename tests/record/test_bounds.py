"""The rolling tape stays within bounds, and says where it was cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from watched import Record

from fp16doctor.record import bounds


def long_step(n: int) -> Any:
    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            x = w
            for _ in range(n):
                x = x * 1.0
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def test_a_step_that_is_too_long(record: Record, monkeypatch: Any) -> None:
    monkeypatch.setattr(bounds, "MAX_OPS", 50)
    monkeypatch.setattr("fp16doctor.record.op_tap.MAX_IDLE_OPS", 10)
    seen = record(long_step(100), cautions=("step-too-long",))
    assert len(seen.steps) == 2
    assert max(seen.sizes) <= 50
    assert not any(t.complete for t in seen.tapes)


def test_preparation_without_end_is_forgotten(record: Record, monkeypatch: Any) -> None:
    monkeypatch.setattr("fp16doctor.record.op_tap.MAX_IDLE_OPS", 50)
    monkeypatch.setattr("fp16doctor.record.split.MAX_CARRIED", 20)

    def run() -> None:
        x = torch.ones(3)
        for _ in range(500):
            x = x * 1.0
        long_step(5)()
        for _ in range(500):
            x = x * 1.0

    seen = record(run)
    assert len(seen.steps) == 2
    assert max(seen.sizes) <= 52
    assert all(t.complete for t in seen.tapes)


def test_copies_that_are_too_large(record: Record, monkeypatch: Any) -> None:
    """The step is handed over once, before the update; what comes later is not recorded."""
    monkeypatch.setattr("fp16doctor.record.recorder.COPY_CAP", 100)

    def run() -> Tensor:
        model = nn.Linear(600, 600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(1, 600)).sum().backward()
            optimizer.step()
        return model.weight

    seen = record(run, cautions=("copies-too-large",))
    assert len(seen.steps) == 2
    assert [t.step for t in seen.tapes] == [0, 1]
    assert all(op.site.phase.value != "optimizer" for op in seen.ops)
    assert not any(t.complete for t in seen.tapes)


def test_a_truncated_step_still_knows_its_scale(record: Record, monkeypatch: Any) -> None:
    monkeypatch.setattr("fp16doctor.record.recorder.COPY_CAP", 100)

    def run() -> None:
        model = nn.Linear(600, 600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            scaler.scale(model(torch.randn(1, 600)).sum() * 10).backward()
            scaler.step(optimizer)
            scaler.update()

    seen = record(run, cautions=("copies-too-large",))
    assert [s.loss_scale for s in seen.steps] == [2.0**127, 2.0**126]
    assert seen.steps[0].skipped
