"""What a step multiplies the old value of a stored tensor by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from replaying import watch
from torch import Tensor, nn

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.rebound import rebounds
from fp16doctor.replay.retention import in_place, retention
from fp16doctor.schema.tape import Tape

HALF = torch.bfloat16


def tape_of(update: Callable[[], object]) -> Tape:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train() -> object:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        update()
        return model

    return watch(train, look=lambda tape: None).tapes[0]


def lerp(state: Tensor, new: Tensor) -> Tensor:
    return state.lerp_(new, 0.25)


def decay_and_add(state: Tensor, new: Tensor) -> Tensor:
    return state.mul_(0.75).add_(new, alpha=0.25)


def add(state: Tensor, new: Tensor) -> Tensor:
    return state.add_(new)


def copied(state: Tensor, new: Tensor) -> Tensor:
    return state.copy_(0.75 * state.float() + 0.25 * new.float())


def foreach(state: Tensor, new: Tensor) -> None:
    torch._foreach_mul_([state], 0.75)


@pytest.mark.parametrize(
    ("update", "factor"),
    [(lerp, 0.75), (decay_and_add, 0.75), (add, 1.0), (copied, 0.75), (foreach, 0.75)],
)
def test_in_place(update: Callable[[Tensor, Tensor], object], factor: float) -> None:
    state, new = torch.ones(8, dtype=HALF), torch.full((8,), 2.0, dtype=HALF)
    tape = tape_of(lambda: update(state, new))
    producers = producers_of(tape)
    (number,) = (n for n in tape.leaves if producers.writers(n) and not tape.leaves[n].name)
    ref = producers.widest_view(number)
    assert ref is not None
    path = in_place(tape, ref, producers.writers(number))
    assert retention(tape, path) == factor


def test_bound_anew() -> None:
    held = {"state": torch.ones(8, dtype=HALF)}

    def update() -> None:
        held["state"] = held["state"] * 0.75 + torch.full((8,), 0.5, dtype=HALF)

    tape = tape_of(update)
    (pair,) = rebounds(tape, producers_of(tape))
    assert retention(tape, pair.path) == 0.75
