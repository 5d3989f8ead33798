"""What is on the tape is what ran: replayed as run it gives the bits that the script had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trainings
from torch import nn
from watched import Record, Watched

from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.fidelity import compare
from fp16doctor.replay.lockstep import lockstep
from fp16doctor.schema.tape import Tape


def check(tape: Tape) -> int:
    """Replay ``tape``; return how many storages were compared."""
    with torch.no_grad(), random_state_kept():
        found = compare(tape, lockstep(tape, None).run)
    assert found.bit_equal, found
    return found.compared


@pytest.fixture
def faithful(record: Record) -> Any:
    """Record a function and check every tape as soon as it is handed over."""

    def run(function: Any) -> Watched:
        compared: list[int] = []
        seen = record(function, check=lambda tape: compared.append(check(tape)))
        assert seen.tapes
        assert min(compared) > 0
        return seen

    return run


@pytest.mark.parametrize("name", trainings.ALL)
def test_trainings(name: str, faithful: Any) -> None:
    faithful(trainings.ALL[name])


def test_a_counter_written_across_steps(faithful: Any) -> None:
    """Neither an op of another step nor a late write changes what a leaf held at first."""

    def run() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counter, kept = torch.zeros(2), torch.zeros(2)
        for _ in range(3):
            scaled = counter * 2
            loss = (model(counter) + scaled + kept).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counter.add_(1)
            early = counter * 1.0
            counter.add_(1)
            kept = early * model.weight.detach().sum()
            early.add_(kept)

    faithful(run)


def test_buffers_used_again(faithful: Any) -> None:
    """A batch is copied into the same memory each time, once by torch and once by numpy."""

    def run() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.empty(3, 2), torch.empty(3, 2)
        for i in range(3):
            x.copy_(torch.randn(3, 2))
            y.numpy()[:] = i
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()

    faithful(run)


def test_gradients_that_live_on(faithful: Any) -> None:
    """Truncated back-propagation through time: a graph of one step is read in the next."""

    def run() -> None:
        cell = nn.GRUCell(3, 3)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
        h = torch.zeros(2, 3)
        for _ in range(3):
            first = cell(torch.randn(2, 3), h)
            h = cell(torch.randn(2, 3), first)
            optimizer.zero_grad()
            h.sum().backward()
            optimizer.step()
            h = h.detach()

    faithful(run)


def test_views_and_writes_into_them(faithful: Any) -> None:
    def run() -> None:
        w = torch.randn(4, 4, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            table = torch.zeros(4, 4)
            table[1:3] = (w * 2)[:2]
            table.t()[0].add_(1)
            rows = table.unbind(0)
            loss = torch.view_as_complex(torch.stack(rows).reshape(-1, 2)).abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    faithful(run)


def test_random_numbers_of_every_source(faithful: Any) -> None:
    def run() -> None:
        w = torch.randn(6, requires_grad=True)
        own = torch.Generator().manual_seed(3)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            noise = torch.rand(6, generator=own) + torch.empty(6).normal_(generator=own)
            order = torch.randperm(6)
            drawn = torch.multinomial(torch.ones(6), 3)
            kept = nn.functional.dropout(w[order] * noise, 0.5)
            torch.manual_seed(5)  # in the middle of a step
            loss = kept.sum() + w[drawn].sigmoid().bernoulli().sum() + (w * torch.randn(6)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    faithful(run)
