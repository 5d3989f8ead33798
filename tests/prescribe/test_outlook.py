"""What fp16 and bf16 would do to an fp32 run, foretold from one taped step."""

from __future__ import annotations

import torch
from torch import nn

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import FormatOutlook
from fp16doctor.schema.recording import Outcome, OutcomeKind


def outlook_of(model: nn.Module, inputs: torch.Tensor, factor: float) -> dict[str, FormatOutlook]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = Session(ScanOptions(), "train.py", ())
    with session:
        for _ in range(2):
            optimizer.zero_grad()
            (factor * model(inputs).square().mean()).backward()
            optimizer.step()
    return session.finish(Outcome(OutcomeKind.FINISHED)).outlook


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_an_ordinary_fp32_run_fits_both_formats() -> None:
    found = outlook_of(mlp(), torch.randn(4, 8), 1.0)
    assert {name: o.status for name, o in found.items()} == {"fp16": "fits", "bf16": "fits"}
    assert found["fp16"].gradient_error is not None
    assert found["bf16"].gradient_error is not None
    assert found["fp16"].gradient_error < found["bf16"].gradient_error < 0.05


def test_values_beyond_fp16_overflow_it_and_not_bf16() -> None:
    found = outlook_of(mlp(), 1e6 * torch.randn(4, 8), 1e-12)
    assert found["fp16"].status == "overflows"
    assert found["fp16"].first is not None
    assert found["fp16"].first.op == "aten.addmm.default"
    assert found["bf16"].status == "fits"


def test_gradients_that_fp16_needs_a_loss_scale_for() -> None:
    found = outlook_of(mlp(), torch.randn(4, 8), 1e-7)
    assert found["fp16"].status == "fits_with_loss_scale"
    assert found["fp16"].loss_scale == 2.0**12
    assert found["bf16"].status == "fits"
