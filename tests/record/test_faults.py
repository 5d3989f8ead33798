"""A fault of the recorder's own becomes a caution, and training goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trainings
from test_observer import same
from torch import nn
from watched import Record

PLACES = [
    "fp16doctor.record.op_tap.op_writer.begin",
    "fp16doctor.record.op_tap.op_writer.finish",
    "fp16doctor.record.recorder.carry_over",
    "fp16doctor.record.roll.Roll.protect",
    "fp16doctor.record.whereabouts.Whereabouts.now",
    "fp16doctor.record.step_book.StepBook.finish",
    "fp16doctor.record.step_book.StepBook.backward_ended",
    "fp16doctor.record.module_paths.ModulePaths._entry",
    "fp16doctor.record.steps.StepState.begin",
    "fp16doctor.record.step_book.StepBook.optimizer_begins",
    "fp16doctor.record.step_book.StepBook.attempted",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_anywhere(place: str, record: Record, monkeypatch: Any) -> None:
    torch.manual_seed(7)
    plain = trainings.fp16_scaler()
    calls = [0]

    def broken(*args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        raise LookupError("planted")

    monkeypatch.setattr(place, broken)
    torch.manual_seed(7)
    seen = record(trainings.fp16_scaler, cautions=("recorder-stopped",))
    assert calls[0] == 1  # once and never again
    assert same(plain, seen.result)
    (caution,) = seen.recorder.cautions.values()
    assert "LookupError: planted" in caution.message
    assert not seen.recorder.roll.ops


def test_a_fault_in_the_examination(record: Record) -> None:
    def check(tape: Any) -> None:
        raise LookupError("planted")

    seen = record(trainings.fp32, cautions=("recorder-stopped",), check=check)
    assert len(seen.result["losses"]) == 3


def test_a_second_recorder(record: Record) -> None:
    """One inside another: both see the steps, and the script its own numbers."""
    torch.manual_seed(7)
    plain = trainings.fp32()
    torch.manual_seed(7)
    seen = record(lambda: record(trainings.fp32))
    assert same(seen.result.result, plain)
    assert len(seen.result.steps) == len(seen.steps) == 3


def test_starting_again(record: Record) -> None:
    model = nn.Linear(6, 3)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 6)).sum().backward()
        optimizer.step()

    assert len(record(run).steps) == 1
    run()
    assert len(record(run).steps) == 1
