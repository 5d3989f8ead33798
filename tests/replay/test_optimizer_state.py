"""What an optimizer keeps in 16 bits, behind consecutive steps, beside fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from curing import PURE, Job
from torch import Tensor, nn

from fp16doctor.replay.optimizer_state import lost_state, states_of
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy
from fp16doctor.schema.tape import Tape


def loss(model: nn.Module, cast: Callable[[Tensor], Tensor]) -> Tensor:
    return 1e-3 * model(cast(torch.randn(8, 4))).float().pow(2).mean()


def tapes(optimizer: Any = torch.optim.Adam, **options: Any) -> tuple[Tape, ...]:
    job = Job(lambda: nn.Linear(4, 3), loss, PURE, optimizer=optimizer, options=options, steps=4)
    return tuple(job.tapes())


@pytest.mark.parametrize("foreach", [False, True])
def test_squares_are_lost_and_means_are_not(foreach: bool) -> None:
    taped = tapes(lr=1e-3, eps=1e-4, foreach=foreach)
    assert sorted(states_of(taped[0]).values()) == [False, False, True, True]
    states, course = lost_state(taped, AS_RUN)
    assert len(course.losses) == 4
    assert {s.share for s in states if s.divides} == {1.0}
    assert max(s.share for s in states if not s.divides) < 1


@pytest.mark.parametrize("policy", [FP32, PrecisionPolicy("fp32 parameters", stores_fp32=True)])
def test_nothing_is_lost_in_fp32(policy: PrecisionPolicy) -> None:
    states, _ = lost_state(tapes(lr=1e-3, eps=1e-4), policy)
    assert [(s.zeros, s.format) for s in states] == [(0, "fp32")] * 4


def test_an_optimizer_without_state() -> None:
    assert lost_state(tapes(torch.optim.SGD, lr=1e-3), AS_RUN)[0] == ()
    assert lost_state((), AS_RUN)[0] == ()
