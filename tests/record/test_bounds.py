"""The rolling tape stays within bounds, and says where it was cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from watched import Record

from fp16doctor.record import bounds
from fp16doctor.record.weak_storage import WeakStorage

IMAGE = 2**21  # bytes; too large to be copied at its first use


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


def shrink_caps(monkeypatch: Any) -> None:
    monkeypatch.setattr(bounds, "INPUT_CAP", 4 * IMAGE)
    monkeypatch.setattr(bounds, "IDLE_CAP", 2 * IMAGE)
    monkeypatch.setattr("fp16doctor.record.op_tap.WEIGH_EVERY", IMAGE)


def image() -> tuple[Tensor, WeakStorage]:
    x = torch.from_numpy(np.ones(IMAGE // 4, np.float32))
    return x, WeakStorage(x.untyped_storage())


def most_alive(look: Any, n: int = 40) -> int:
    """Return how many of the images looked at, one after the other, were in memory at once."""
    seen, most = [], 0
    for _ in range(n):
        x, weak = image()
        look(x)
        del x
        seen.append(weak)
        most = max(most, sum(not w.expired() for w in seen))
    return most


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.mean().item(),
        lambda x: x[1:],
        lambda x: x.requires_grad_().detach(),
    ],
)
def test_a_look_at_the_data_does_not_keep_it(record: Record, monkeypatch: Any, look: Any) -> None:
    shrink_caps(monkeypatch)
    found = []

    def run() -> None:
        found.append(most_alive(look))
        long_step(5)()
        found.append(most_alive(look))

    seen = record(run)
    assert max(found) <= 10  # the first step keeps some until its tape is done with
    assert len(seen.steps) == 2
    assert all(t.complete for t in seen.tapes)


def test_data_that_the_script_keeps_does_not_count(record: Record, monkeypatch: Any) -> None:
    """Nothing is freed by letting go of it: the step is taped whole."""
    shrink_caps(monkeypatch)

    def run() -> None:
        w = torch.ones(IMAGE // 4, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            images = [image()[0] for _ in range(20)]
            sum((w * x).sum() for x in images).backward()
            optimizer.step()

    seen = record(run)
    assert len(seen.tapes) == 2
    assert all(t.complete for t in seen.tapes)


def test_a_step_whose_inputs_pile_up(record: Record, monkeypatch: Any) -> None:
    shrink_caps(monkeypatch)
    found = []

    def run() -> None:
        w = torch.ones(IMAGE // 4, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for n in (20, 1):
            found.append(most_alive(lambda x: (w * x).sum().backward(), n))
            optimizer.step()
            optimizer.zero_grad()

    seen = record(run, cautions=("inputs-too-large",))
    record(run, cautions=("inputs-too-large",), tapes=False)  # a tape built would keep its inputs
    assert found[2] <= 8
    assert [t.complete for t in seen.tapes] == [False, True]
    assert [s.loss for s in seen.steps] == [20 * IMAGE / 4, -IMAGE / 4]


def test_evaluation_with_grad_does_not_cost_the_next_step(record: Record, monkeypatch: Any) -> None:
    shrink_caps(monkeypatch)
    found = []

    def run() -> None:
        model = nn.Linear(IMAGE // 4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            found.append(most_alive(lambda x: model(x).item()))
            model(image()[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    seen = record(run, cautions=("inputs-too-large",))
    assert sum(t.complete for t in seen.tapes) == len(seen.steps) == 2
    found.clear()
    record(run, cautions=("inputs-too-large",), tapes=False)
    assert max(found) <= 8
