"""From a training to the report: Fixup is advised where it helps, and is quiet where it is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fp16doctor
from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.prescription import RecommendationStatus, RemedyKind
from fp16doctor.schema.recording import Outcome, OutcomeKind

BATCH, SIZE, CLASSES = 8, 4, 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, 1, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class Net(nn.Module):
    """6·9 + 2 = 56 layers for 27 blocks, 110 for 54; He's initialisation, no normalisation."""

    def __init__(self, blocks: int, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.fc = nn.Linear(width, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


def batch() -> tuple[Tensor, Tensor]:
    y = torch.randint(0, CLASSES, (BATCH,))
    place = torch.eye(CLASSES)[y][:, :3, None, None]
    return place * 2 + 0.5 * torch.randn(BATCH, 3, SIZE, SIZE), y


def scanned(train: Callable[[], object]) -> Diagnosis:
    session = Session(ScanOptions(budget_s=20.0), __file__, ())
    with session:
        held = train()  # noqa: F841  # as a script does until its end
    return session.finish(Outcome(OutcomeKind.FINISHED))


def train(
    prepared: Callable[[nn.Module], None],
    *,
    blocks: int,
    steps: int,
    scale: float = 1.0,
    losses: list[float] | None = None,
) -> object:
    torch.manual_seed(0)
    model = Net(blocks)
    prepared(model)
    optimizer = torch.optim.SGD(fp16doctor.parameter_groups(model, 0.1), momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        x, y = batch()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x * scale), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if losses is not None:
            losses.append(loss.item())
    return model, optimizer, scaler


@pytest.mark.parametrize("blocks", [27, pytest.param(54, marks=pytest.mark.slow)])
def test_the_overflowing_network_is_told_to_use_it_and_then_trains(blocks: int) -> None:
    found = scanned(lambda: train(lambda model: None, blocks=blocks, steps=2, scale=4))
    growing = next(f for f in found.findings if f.code == "FD501")
    assert growing.severity is Severity.ERROR
    assert found.recommendation.status is RecommendationStatus.PRESCRIBED
    cure = found.prescriptions[found.recommendation.prescriptions[0]]
    assert cure.remedy.kind is RemedyKind.FIXUP_INIT
    assert f"{blocks} branches" in cure.remedy.title

    def paste(model: nn.Module) -> None:
        exec(cure.remedy.change, {"torch": torch, "model": model})

    losses: list[float] = []
    train(paste, blocks=blocks, steps=16, scale=4, losses=losses)
    assert all(x - x == 0 for x in losses)
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])


@pytest.mark.parametrize("scalars", [False, True])
def test_a_run_that_uses_it_is_quiet(scalars: bool) -> None:
    """On the first step all gradients but the classifier's are exactly 0: no underflow."""

    def prepare(model: nn.Module) -> None:
        fp16doctor.fixup_(model, batch()[0], scalars=scalars)

    found = scanned(lambda: train(prepare, blocks=9, steps=6))
    loud = [f.code for f in found.findings if f.severity is not Severity.NOTE]
    assert loud == []
    assert found.recommendation.status is RecommendationStatus.NONE_NEEDED


def test_inputs_that_are_too_large_are_no_matter_of_initialisation() -> None:
    def prepare(model: nn.Module) -> None:
        fp16doctor.fixup_(model, batch()[0])

    found = scanned(lambda: train(prepare, blocks=9, steps=2, scale=4e4))
    assert found.findings
    assert "FD501" not in {f.code for f in found.findings}
    kinds = {p.remedy.kind for p in found.prescriptions}
    assert RemedyKind.FIXUP_INIT not in kinds
