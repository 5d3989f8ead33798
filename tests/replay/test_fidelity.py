"""Differences between the recording and its replay are noticed, and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from replaying import line, line_of, watch
from torch import nn

from fp16doctor.replay.fidelity import compare
from fp16doctor.replay.lockstep import lockstep
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import Fidelity


def fidelity_of(function: Any) -> Fidelity:
    seen = watch(function, with_reference=False)
    return seen.traces[-1].fidelity


def test_silent_writer_is_noticed() -> None:
    def run() -> Any:
        w = torch.ones(4) * 2
        (w + 1).sum()
        w.numpy()[2] = 7.0  # leaves no op
        return w

    found = fidelity_of(run)
    assert not found.bit_equal
    assert found.largest_difference == 5.0
    assert line(found.first_difference) == line_of(run, "torch.ones(4)")


def test_silent_writer_in_the_middle_of_a_step() -> None:
    def run() -> Any:
        model = nn.Linear(3, 2)
        hidden = model(torch.ones(1, 3))
        hidden.detach().numpy()[:] = 5.0
        loss = hidden.sum()
        loss.backward()
        return model, loss

    found = fidelity_of(run)
    assert not found.bit_equal
    assert found.first_difference is not None


def test_the_first_difference_is_the_earliest_on_the_tape() -> None:
    def run() -> Any:
        a = torch.ones(2) * 2
        b = torch.ones(2) * 3
        b.numpy()[0] = 0.0
        a.numpy()[0] = 0.0
        return a, b

    found = fidelity_of(run)
    assert line(found.first_difference) == line_of(run, "* 2")
    assert found.largest_difference == 3.0


def test_values_that_nothing_taped_has_written_are_taken_over() -> None:
    def run() -> Any:
        buffer = torch.empty(3)
        buffer.numpy()[:] = 2.0
        return buffer * 2

    seen = watch(run)
    assert seen.traces[-1].fidelity.bit_equal
    assert seen.traces[-1].opaque[0][0] == "aten.mul.Tensor"


def test_uninitialised_memory_is_not_compared() -> None:
    def run() -> Any:
        whole = torch.empty(64)
        whole[:8] = 1.0
        return whole

    assert fidelity_of(run).bit_equal


def test_workspace_behind_a_view_is_not_compared() -> None:
    """Only what references on the tape cover counts; an RNN's reserve is not among it."""
    model = nn.LSTM(3, 4)

    def run() -> Any:
        out, _ = model(torch.ones(2, 1, 3))
        return out

    assert fidelity_of(run).bit_equal


@pytest.mark.parametrize(
    ("mine", "other", "gap"),
    [
        (1.0, 1.0, None),
        (float("nan"), float("nan"), None),
        (0.0, -0.0, 0.0),
        (1.0, 3.0, 2.0),
        (1.0, float("nan"), float("inf")),
        (1.0, float("inf"), float("inf")),
        (2**60, 2**60 + 1, 0.0),
    ],
)
def test_gap_between_two_values(mine: float, other: float, gap: float | None) -> None:
    def run() -> Any:
        return torch.tensor([mine]) + 0

    tapes: list[Tape] = []
    kept = watch(run, look=tapes.append).result
    result = lockstep(tapes[-1], None)
    kept.copy_(torch.tensor([other]))
    found = compare(tapes[-1], result.run)
    assert found.bit_equal is (gap is None)
    assert found.largest_difference == (gap or 0.0)


def test_nan_payload_is_no_difference() -> None:
    bits = torch.tensor([0x7FC00001, 0x7FC00000], dtype=torch.int32)

    def run() -> Any:
        return bits.view(torch.float32) + 0

    tapes: list[Tape] = []
    kept = watch(run, look=tapes.append).result
    result = lockstep(tapes[-1], None)
    kept.view(torch.int32).copy_(torch.full((2,), 0x7FC00002))
    assert compare(tapes[-1], result.run).bit_equal


def test_single_element_with_any_stride() -> None:
    def run() -> Any:
        return torch.ones(1).expand(1, 1).half() + torch.ones(1, 1).half().expand(1, 1)

    assert fidelity_of(run).bit_equal
