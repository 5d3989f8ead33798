"""Forked processes and other threads are not recorded, and do not disturb what is."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from watched import Record, short, step_with

from fp16doctor.pipeline import summary


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_records_nothing(record: Record) -> None:
    """Nor does it hand over tapes, call back, or count steps."""

    def run() -> int:
        step_with(lambda: torch.ones(()))()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                before = len(recorders[0].roll.ops)
                for _ in range(3):
                    step_with(lambda: nn.Linear(2, 2)(torch.randn(1, 2)).sum())()
                left = bool(
                    nn.modules.module._global_forward_pre_hooks
                    or sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
                )
                grown = len(recorders[0].roll.ops) - before
                os.write(write, bytes([grown, left, len(asked) - n_asked]))
            except BaseException:  # noqa: BLE001 - else it would run on as a second test
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(pid, 0)
        answer = os.read(read, 3)
        step_with(lambda: torch.ones(()))()
        return list(answer)  # type: ignore[return-value]

    recorders: list[Any] = []
    asked: list[int] = []
    n_asked = 1
    seen = record(run, started=recorders.append, before_step=asked.append)
    assert seen.result == [0, 0, 0]
    assert len(seen.steps) == 2


class Squares(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return (torch.ones(2) * index).square()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_of_a_data_loader(record: Record) -> None:
    def run() -> float:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        total = 0.0
        for x in DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total

    seen = record(run)
    assert len(seen.steps) == 2
    assert "square" not in [short(op.op) for op in seen.ops]


def test_a_thread_of_the_script_is_not_recorded(record: Record) -> None:
    def run() -> None:
        def work() -> None:
            model = nn.Linear(3, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.randn(2, 3)).tanh().sum().backward()
                optimizer.step()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        step_with(lambda: torch.ones(()))()

    seen = record(run)
    assert len(seen.steps) == 1
    assert "tanh" not in [short(op.op) for op in seen.ops]
    assert seen.recorder.steps.elsewhere == 3
    assert [w.slug for w in summary.warnings(seen.recorder)] == ["other-thread"]


def test_a_thread_that_updates_by_hand_is_told_where_nothing_else_trains(record: Record) -> None:
    def run() -> None:
        def work() -> None:
            weight = torch.ones(3, requires_grad=True)
            (weight * 2).sum().backward()
            weight.data.sub_(0.1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    (told,) = summary.warnings(record(run).recorder)
    assert told.message == "1 backward call ran in another thread, which was not watched"
