"""Growth towards a format's maximum: told in time, and not of what stays or of what is small."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp16doctor.record.foresight import limit_of, loss_jumps, nears_limit
from fp16doctor.record.step_plan import FOUND_INF, MOST_NEARING_TAPES, NEARING, StepPlan

FP16, FP32 = limit_of(torch.float16), limit_of(torch.float32)
MAGNITUDES = st.floats(min_value=1e-30, max_value=1e30)


@pytest.mark.parametrize(
    ("now", "before", "limit", "nears"),
    [
        (30000.0, 20000.0, FP16, True),  # 1.5 times as large each step: 45000, then 67500
        (30000.0, 28000.0, FP16, False),
        (60000.0, 60000.0, FP16, False),  # stays
        (60000.0, 61000.0, FP16, False),  # falls
        (64000.0, 63000.0, FP16, True),
        (30000.0, 20000.0, FP32, False),
        (1e30, 1e20, FP32, True),
        (1.0, 1e-20, FP16, False),  # an outlier of small values
        (30000.0, 0.0, FP16, False),
        (30000.0, 20000.0, math.inf, False),  # a format that is not known
    ],
)
def test_growth_is_carried_on_for_two_steps(
    now: float, before: float, limit: float, nears: bool
) -> None:
    assert nears_limit(now, before, limit) is nears


@given(now=MAGNITUDES, before=MAGNITUDES, factor=st.integers(-20, 20))
def test_it_depends_on_ratios_alone(now: float, before: float, factor: int) -> None:
    """Powers of two move the values; the limit's own range bounds the growth and stays."""
    if nears_limit(now, before, FP32) and factor > 0:
        assert nears_limit(math.ldexp(now, factor), math.ldexp(before, factor), FP32)
    assert not (nears_limit(now, before, FP32) and nears_limit(before, now, FP32))


@pytest.mark.parametrize(
    ("now", "before", "jumps"),
    [
        (80.0, 10.0, True),
        (79.0, 10.0, False),
        (-80.0, 10.0, True),
        (1.0, 0.0, False),
        (math.nan, 1.0, False),
        (math.inf, 1.0, False),
        (80.0, None, False),
        (None, 1.0, False),
    ],
)
def test_a_loss_that_jumps(now: float | None, before: float | None, jumps: bool) -> None:
    assert loss_jumps(now, before) is jumps


def test_steps_taped_for_growth_are_bounded_and_do_not_count_as_trouble() -> None:
    plan = StepPlan(10**6, None)
    near = frozenset({NEARING})
    taped = [plan.wants_tape(step, near) for step in range(3, 63)]
    assert taped == [True] * MOST_NEARING_TAPES + [False] * (60 - MOST_NEARING_TAPES)
    assert plan.wants_tape(63, near | {("0", "output")})
    assert plan.wants_tape(64, near | {FOUND_INF})
    assert not plan.wants_tape(65, near | {("0", "output")})


def test_a_schedule_that_says_none_is_kept_and_every_step_is_every_step() -> None:
    near = frozenset({NEARING})
    assert not StepPlan(10, lambda step: "NONE").wants_tape(5, near)
    assert StepPlan(10, lambda step: "WARMUP").wants_tape(5, near)
    assert all(StepPlan(10, None, every_step=True).wants_tape(s, frozenset()) for s in range(40))
