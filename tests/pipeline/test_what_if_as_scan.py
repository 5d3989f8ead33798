"""A replayed bundle gives the numbers, before and after, that the scan gave for the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from deep import Deep
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.pipeline.what_if import what_if
from fp16doctor.record.bundle import read_bundle, write_bundle
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict
from fp16doctor.schema.recording import Outcome, OutcomeKind
from fp16doctor.schema.what_if import Question

# Numbers that need the steps behind the one that is in a bundle.
_OF_THE_COURSE = "loss after"


def overflowing() -> Tensor:
    return step(Deep(1.0, 1e6, 1.0), 0.01, lambda out: F.cross_entropy(out, torch.arange(6) % 3))


def losing() -> Tensor:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return step(model, 10.0, lambda out: (out - 1).square().mean() * 1e-6)


def step(model: nn.Module, rate: float, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with torch.autocast("cpu", torch.float16):
        loss = loss_of(model(torch.randn(6, 4)).float())
    loss.backward()
    optimizer.step()
    return loss


def questions(found: tuple[Prescription, ...]) -> Iterator[tuple[Prescription, Question]]:
    for cure in found:
        remedy = cure.remedy
        if cure.verification.verdict is Verdict.NOT_VERIFIED:
            continue
        if remedy.kind is RemedyKind.DTYPE:
            yield cure, Question(str(remedy.value), (), None, "fp32")
        elif remedy.kind is RemedyKind.FP32_KEEP:
            yield cure, Question("as-run", remedy.target, None, "fp32")
        elif remedy.kind is RemedyKind.LOSS_SCALE:
            yield cure, Question("as-run", (), remedy.value["recommended"], "fp32")


@pytest.mark.parametrize(
    ("train", "kind"),
    [(overflowing, RemedyKind.FP32_KEEP), (losing, RemedyKind.LOSS_SCALE)],
)
def test_the_table_is_the_scans(
    train: Callable[[], Tensor], kind: RemedyKind, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    session = Session(ScanOptions(keeps_bundle=True), __file__, ())
    with session:
        held = train()  # noqa: F841  # as a script does until its end
    diagnosis = session.finish(Outcome(OutcomeKind.FINISHED))
    write_bundle(tmp_path / "a", session.bundle(diagnosis))
    bundle = read_bundle(tmp_path / "a")
    asked = list(questions(diagnosis.prescriptions))
    assert {c.remedy.kind for c, _ in asked} >= {kind, RemedyKind.DTYPE}
    for cure, question in asked:
        by_scan, replayed = cure.verification, what_if(bundle, question).verification
        assert by_scan.steps == (0,)
        assert replayed.before.items() >= by_scan.before.items()
        alone = {k: v for k, v in by_scan.after.items() if not k.startswith(_OF_THE_COURSE)}
        assert len(alone) >= 4
        assert replayed.after.items() >= alone.items(), question
        assert replayed.verdict is by_scan.verdict
