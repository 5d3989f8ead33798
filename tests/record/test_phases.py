"""Phases of ops, as defined for a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trainings
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from watched import Record, Watched, short

from fp16doctor.schema.location import Phase

FORWARD, LOSS, BACKWARD = Phase.FORWARD, Phase.LOSS, Phase.BACKWARD
OPTIMIZER, SCRIPT = Phase.OPTIMIZER, Phase.SCRIPT


def phases(seen: Watched, name: str) -> list[Phase]:
    return [op.site.phase for op in seen.ops if short(op.op) == name]


def test_a_whole_step(record: Record) -> None:
    def run() -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(2):
            x = torch.rand(2, 3).sqrt()
            loss = model(x).square().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    seen = record(run)
    assert set(phases(seen, "sqrt")) == {SCRIPT}
    assert phases(seen, "addmm") == [FORWARD] * 2
    assert phases(seen, "tanh") == [FORWARD] * 2
    assert phases(seen, "pow") == [LOSS, BACKWARD] * 2
    assert phases(seen, "sum")[:2] == [LOSS, BACKWARD]
    assert phases(seen, "ones_like") == [LOSS] * 2
    assert phases(seen, "tanh_backward") == [BACKWARD] * 2
    for late in ("_amp_foreach_non_finite_check_and_unscale_", "linalg_vector_norm", "add_"):
        assert set(phases(seen, late)) == {OPTIMIZER}
    assert phases(seen, "_amp_update_scale_") == [OPTIMIZER] * 2


def test_a_loss_module_is_loss(record: Record) -> None:
    def run() -> None:
        model, loss_of = nn.Linear(3, 3), nn.Sequential(nn.Softmax(-1), nn.MSELoss())

        class Loss(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = loss_of[1](loss_of[0](x), torch.zeros(2, 3))
                return out

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Loss()(model(torch.randn(2, 3))).backward()
        optimizer.step()

    seen = record(run)
    assert phases(seen, "_softmax") == [LOSS]
    assert phases(seen, "mse_loss") == [LOSS]
    assert seen.one("_softmax").site.module_class == "Softmax"


def test_a_frozen_net_inside_a_loss_module_is_loss(record: Record) -> None:
    class Perceptual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 5), nn.ReLU()).requires_grad_(False)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return F.l1_loss(self.net(a), self.net(b))

    def run() -> None:
        model, loss_of = nn.Linear(3, 3), Perceptual()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(2, 3)
        loss_of(model(x), x).backward()
        optimizer.step()

    seen = record(run)
    assert phases(seen, "addmm") == [FORWARD, LOSS, LOSS]
    assert phases(seen, "relu") == [LOSS, LOSS]
    assert [op.site.module_path for op in seen.ops if short(op.op) == "relu"] == ["net.1"] * 2


def test_a_frozen_net_in_front_of_the_model_is_forward(record: Record) -> None:
    def run() -> None:
        backbone, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        head(backbone(torch.randn(2, 3))).sum().backward()
        optimizer.step()

    assert phases(record(run), "addmm") == [FORWARD, FORWARD]


def test_a_teacher_behind_the_student_is_forward(record: Record) -> None:
    def run() -> None:
        student, teacher = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        x = torch.randn(2, 3)
        out = student(x)
        with torch.no_grad():
            target = teacher(x)
        F.mse_loss(out, target).backward()
        optimizer.step()

    seen = record(run)
    assert phases(seen, "addmm") == [FORWARD, FORWARD]
    assert phases(seen, "mse_loss") == [LOSS]


def test_a_loss_module_that_trains_is_forward(record: Record) -> None:
    def run() -> None:
        model, margin = nn.Linear(3, 3), nn.Linear(3, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *margin.parameters()], lr=0.1)
        margin(model(torch.randn(2, 3))).mean().backward()
        optimizer.step()

    assert phases(record(run), "addmm") == [FORWARD, FORWARD]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", ["module", "function", "inside a module"])
def test_what_a_checkpoint_computes_again_is_forward(
    kind: str, reentrant: bool, record: Record
) -> None:
    block = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())

    def function(x: Tensor) -> Tensor:
        return (x @ x.t()).sigmoid()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            body: Any = function if kind == "inside a module" else self.block
            out: Tensor = checkpoint(body, self.first(x), use_reentrant=reentrant)
            return out

    def run() -> None:
        model = Outer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(2, 3)
        if kind == "function":
            loss = checkpoint(function, model.first(x), use_reentrant=reentrant).sum()
        else:
            loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seen = record(run)
    expected = LOSS if kind == "function" else FORWARD
    assert phases(seen, "sigmoid") == [expected, expected]
    paths = {op.site.module_path for op in seen.ops if short(op.op) == "sigmoid"}
    assert paths == {"module": {"block.1"}, "function": {None}, "inside a module": {""}}[kind]
    assert phases(seen, "sigmoid_backward") == [BACKWARD]


def test_a_gradient_taken_inside_a_forward(record: Record) -> None:
    """Forces: the derivative of an energy is part of the forward, and enters the loss."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (force,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
            return force.sin()

    def run() -> None:
        model = Energy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.randn(2, 3)).exp().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seen = record(run)
    assert len(seen.steps) == 2
    assert [len(t.losses) for t in seen.tapes] == [1, 1]
    assert phases(seen, "sin") == [FORWARD] * 2
    assert phases(seen, "exp") == [LOSS] * 2
    assert set(phases(seen, "tanh_backward")) == {BACKWARD}


def test_the_loss_of_a_closure_is_loss(record: Record) -> None:
    seen = record(trainings.lbfgs)
    assert set(phases(seen, "nll_loss_forward")) == {LOSS}
    assert set(phases(seen, "dot")) == {OPTIMIZER}


def test_an_average_of_the_weights_is_optimizer(record: Record) -> None:
    def run() -> None:
        model, average = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            average.weight.lerp_(model.weight, 0.1)

    assert phases(record(run), "lerp_") == [OPTIMIZER]


def test_accumulating_a_loss_for_the_log_does_not_open_a_step(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = torch.zeros(())
        for _ in range(3):
            loss = model(torch.randn(2, 3)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss

    seen = record(run)
    assert len(seen.steps) == 3
    assert phases(seen, "addmm") == [FORWARD] * 3


def test_an_update_by_hand_is_optimizer(record: Record) -> None:
    assert set(phases(record(trainings.by_hand), "sub_")) == {OPTIMIZER}
