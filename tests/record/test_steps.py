"""Steps: how many, with which loss and scale; what --steps sees; evaluation in between."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import trainings
from torch import Tensor, nn
from torch.nn import functional as F
from watched import Record, short

from fp16doctor.record.script import StopScript
from fp16doctor.schema.location import Phase


def sums_of(losses: list[float], n: int) -> list[float]:
    return [sum(losses[i : i + n]) for i in range(0, len(losses), n)]


PLAIN = [
    *("fp32", "bf16_autocast", "two_optimizers", "by_hand", "functional", "custom_function"),
    *("checkpoint_reentrant", "checkpoint_not_reentrant", "lstm"),
]


@pytest.mark.parametrize("name", PLAIN)
def test_one_step_an_update(name: str, record: Record) -> None:
    seen = record(trainings.ALL[name])
    assert [s.step for s in seen.steps] == [0, 1, 2]
    assert [s.loss for s in seen.steps] == pytest.approx(seen.result["losses"], rel=1e-6)
    for step in seen.steps:
        assert (step.loss_scale, step.found_inf, step.skipped) == (None, None, False)
        assert step.n_ops > 5
        assert step.n_nonfinite_ops == 0
    assert [t.step for t in seen.tapes] == [0, 1, 2]


def beside_an_unused_optimizer(*, with_grad: bool) -> list[float]:
    class Unused(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            raise AssertionError

    model, losses = nn.Linear(3, 1), []
    optimizer = Unused(model.parameters(), {"lr": 0.1})
    for _ in range(5):
        loss = model(torch.randn(4, 3)).pow(2).sum()
        if with_grad:
            model.zero_grad()
            loss.backward()
            gradients = [p.grad for p in model.parameters()]
        else:
            gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                assert g is not None
                p -= 0.1 * g
        losses.append(loss.item())
    del optimizer
    return losses


def test_updates_by_hand_beside_an_optimizer_that_is_never_stepped(record: Record) -> None:
    seen = record(lambda: beside_an_unused_optimizer(with_grad=False))
    assert [s.loss for s in seen.steps] == pytest.approx(seen.result, rel=1e-6)


def test_gradients_that_an_unused_optimizer_could_take(record: Record) -> None:
    """Only the third write tells them from the climb of a two-pass optimizer."""
    seen = record(lambda: beside_an_unused_optimizer(with_grad=True))
    first, *others = seen.steps
    assert first.loss == pytest.approx(sum(seen.result[:3]), rel=1e-6)
    assert [s.loss for s in others] == pytest.approx(seen.result[3:], rel=1e-6)


def test_the_scaler(record: Record) -> None:
    seen = record(trainings.fp16_scaler)
    *losses, _ = seen.result["losses"]
    assert [s.loss for s in seen.steps] == pytest.approx(losses, rel=1e-3)
    assert [(s.loss_scale, s.next_loss_scale) for s in seen.steps] == [(1024.0, 1024.0)] * 3
    assert [(s.found_inf, s.skipped) for s in seen.steps] == [(False, False)] * 3


def test_skipped_steps_are_steps(record: Record) -> None:
    seen = record(trainings.skipped_steps)
    assert [s.loss_scale for s in seen.steps] == [2.0**26, 2.0**25, 2.0**24]
    assert [s.next_loss_scale for s in seen.steps] == [2.0**25, 2.0**24, 2.0**23]
    assert all(s.found_inf and s.skipped and s.n_nonfinite_ops for s in seen.steps)


def test_a_number_of_micro_batches_is_one_step(record: Record) -> None:
    seen = record(trainings.accumulation)
    expected = sums_of(seen.result["losses"], 2)
    assert [s.loss for s in seen.steps] == pytest.approx(expected, rel=1e-6)
    assert [len(t.losses) for t in seen.tapes] == [2, 2, 2]
    assert [len(t.backward_ends) for t in seen.tapes] == [2, 2, 2]


def test_a_closure_is_one_step(record: Record) -> None:
    seen = record(trainings.lbfgs)
    assert len(seen.steps) == 3
    assert all(len(t.losses) >= 2 for t in seen.tapes)
    assert seen.steps[0].loss is not None
    assert seen.steps[0].loss > seen.result["losses"][0]


def test_two_passes_are_one_step(record: Record) -> None:
    """Also the first one, where the climbing write comes before any optimizer was stepped."""
    seen = record(trainings.sam)
    assert len(seen.steps) == 3
    assert [len(t.losses) for t in seen.tapes] == [2, 2, 2]


def test_a_gan_has_a_step_for_each_side(record: Record) -> None:
    """The gradient of the penalty is differentiated again: it is no loss."""
    seen = record(trainings.wgan_gp)
    assert [s.loss for s in seen.steps] == pytest.approx(seen.result["losses"], rel=1e-6)


@pytest.mark.parametrize("per_sample", [False, True])
def test_a_loss_with_a_gradient_given_for_it(per_sample: bool, record: Record) -> None:
    def run() -> list[float]:
        model, losses = nn.Linear(3, 1), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            each = model(torch.ones(4, 3)).pow(2).squeeze(1)
            loss = each if per_sample else each.mean()
            gradient = torch.ones(4) / 4 if per_sample else torch.ones_like(loss)
            loss.backward(gradient)
            optimizer.step()
            losses.append(each.mean().item())
        return losses

    seen = record(run)
    assert [s.loss for s in seen.steps] == pytest.approx(seen.result, rel=1e-6)


@pytest.mark.parametrize("weight", [torch.ones(2, 3), torch.tensor(0.5).expand(2, 3)])
def test_outputs_that_all_have_one_weight_are_a_loss(weight: Tensor, record: Record) -> None:
    def run() -> float:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y = model(torch.randn(2, 3))
        y.backward(weight)
        optimizer.step()
        return float((y.detach() * weight).sum())

    seen = record(run)
    (step,) = seen.steps
    assert step.loss == pytest.approx(seen.result, rel=1e-6)


def several_roots() -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sums = []
    for _ in range(3):
        optimizer.zero_grad()
        one, other = model(torch.randn(8, 4)).square().mean(0).unbind()
        torch.autograd.backward([one, other])
        optimizer.step()
        sums.append(one.item() + other.item())
    return sums


def test_every_root_of_a_backward_is_a_loss(record: Record) -> None:
    seen = record(several_roots)
    assert [len(t.losses) for t in seen.tapes] == [2, 2, 2]
    assert [s.loss for s in seen.steps] == pytest.approx(seen.result, rel=1e-6)


def test_gradients_from_the_next_piece_have_no_loss(record: Record) -> None:
    """A model that is trained in two pieces: only the second one ends in a loss."""

    def run() -> float:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        h = first(torch.randn(2, 3))
        border = h.detach().requires_grad_()
        loss = second(border).pow(2).sum()
        loss.backward()
        h.backward(border.grad)
        optimizer.step()
        return loss.item()

    seen = record(run)
    (step,) = seen.steps
    assert step.loss == pytest.approx(seen.result, rel=1e-6)


def test_an_optimizer_inside_backward(record: Record) -> None:
    """The step closes when backward has ended."""

    def run() -> None:
        model = trainings.net()
        for p in model.parameters():
            single = torch.optim.SGD([p], lr=0.1)
            p.register_post_accumulate_grad_hook(lambda p, o=single: (o.step(), o.zero_grad())[0])
        for _ in range(3):
            x, y = trainings.batch()
            F.cross_entropy(model(x), y).backward()

    seen = record(run)
    assert len(seen.steps) == 3
    updates = [op for op in seen.ops if short(op.op) == "add_"]
    assert len(updates) == 3 * 4
    assert {op.site.phase for op in updates} == {Phase.BACKWARD}


def test_a_step_that_raised_does_not_stop_the_counting(record: Record) -> None:
    class Moody(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> None:
            Moody.calls += 1
            if Moody.calls == 2:
                raise MemoryError
            super().step(closure)

    def run() -> None:
        model = trainings.net()
        optimizer = Moody(model.parameters(), lr=0.1)
        for _ in range(4):
            x, y = trainings.batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            try:
                optimizer.step()
            except MemoryError:
                continue

    assert len(record(run).steps) == 3


def test_an_interrupted_forward_does_not_stop_the_counting(record: Record) -> None:
    class Moody(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Moody.calls += 1
            if Moody.calls == 2:
                raise KeyboardInterrupt
            return super().forward(x)

    def run() -> None:
        model = nn.Sequential(nn.Sequential(Moody(6, 3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            x, y = trainings.batch()
            try:
                loss = F.cross_entropy(model(x), y)
            except KeyboardInterrupt:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seen = record(run)
    assert len(seen.steps) == 3
    forwards = [op for op in seen.ops if short(op.op) == "addmm"]
    assert [op.site.module_path for op in forwards] == ["0.0"] * 3


# -- --steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp32", "functional", "skipped_steps"])
def test_the_callback_is_asked_before_each_step(name: str, record: Record) -> None:
    asked: list[int] = []
    record(trainings.ALL[name], before_step=asked.append)
    assert list(dict.fromkeys(asked)) == [0, 1, 2]


@pytest.mark.parametrize("name", ["fp32", "functional", "lbfgs", "checkpoint_reentrant"])
def test_what_the_callback_raises_ends_the_script(name: str, record: Record) -> None:
    def stop_after_two(done: int) -> None:
        if done >= 2:
            raise StopScript

    done: list[int] = []

    def run() -> None:
        with pytest.raises(StopScript):
            trainings.ALL[name]()
        done.append(1)

    seen = record(run, before_step=stop_after_two)
    assert done
    assert len(seen.steps) == 2


# -- between steps -------------------------------------------------------------------------------


def training_with(evaluate: Any, n: int) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x, y = trainings.batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        right = torch.zeros(())
        with torch.no_grad():
            for _ in range(n):
                x, y = trainings.batch()
                right += (evaluate(model)(x).argmax(1) == y).sum()
        model.train()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_evaluation_does_not_grow_the_tape(mode: str, record: Record) -> None:
    def evaluate(model: nn.Module) -> nn.Module:
        return model.train(mode == "train")

    short_run = record(lambda: training_with(evaluate, 5))
    long_run = record(lambda: training_with(evaluate, 60))
    assert [s.n_ops for s in long_run.steps] == [s.n_ops for s in short_run.steps]
    assert max(long_run.sizes) <= max(short_run.sizes)
    if mode == "eval":  # nothing of it reaches the next step
        forward = [short(op.op) for op in long_run.tapes[1].ops]
        assert forward.count("native_batch_norm") == 1


def test_a_teacher_stays_on_the_tape(record: Record) -> None:
    """What the step reads of a call without gradients is kept with it."""

    def run() -> None:
        teacher, student = trainings.net(), trainings.net()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(2):
            x, _ = trainings.batch()
            with torch.no_grad():
                target = teacher(x)
            loss = F.mse_loss(student(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seen = record(run)
    assert [seen.of(Phase.FORWARD, i).count("addmm") for i in (0, 1)] == [4, 4]


def test_a_batch_prepared_after_the_update_belongs_to_the_next_step(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.full((4, 6), 2.0)
        for _ in range(3):
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            x = torch.randn(4, 6).mul_(3)

    seen = record(run)
    names = [[short(op.op) for op in tape.ops[:2]] for tape in seen.tapes]
    assert names == [["full", "addmm"], ["randn", "mul_"], ["randn", "mul_"]]
    assert {op.site.phase for op in seen.tapes[1].ops[:2]} == {Phase.SCRIPT}


def test_a_loss_that_is_nan(record: Record) -> None:
    def run() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.ones(1, 2)).sum() * math.nan
        loss.backward()
        optimizer.step()

    (step,) = record(run).steps
    assert step.loss is not None
    assert math.isnan(step.loss)
    assert step.n_nonfinite_ops > 1
