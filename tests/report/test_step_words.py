"""Losses, skips and loss scales of a run as short facts."""

from __future__ import annotations

import math
import random

import pytest

from fp16doctor.report.step_words import course, loss_words, no_fall, no_update, skips
from fp16doctor.schema.recording import StepInfo


def steps(*losses: float | None, skipped: tuple[int, ...] = ()) -> list[StepInfo]:
    return [StepInfo(i, x, skipped=i in skipped) for i, x in enumerate(losses)]


def noise(n: int, seed: int) -> list[float]:
    made = random.Random(seed)
    return [2.3 + 0.02 * made.gauss(0, 1) for _ in range(n)]


def test_a_loss_that_stays_where_it_was_does_not_fall() -> None:
    assert no_fall(steps(*[2.3] * 60)) == "the loss does not fall (2.3 → 2.3 over 60 steps)"
    said = [bool(no_fall(steps(*noise(60, seed)))) for seed in range(200)]
    assert sum(said) > 160  # each of two conditions fails by chance about once in twenty times


def test_a_rising_loss_does_not_fall() -> None:
    assert no_fall(steps(*(1.0 + i / 10 for i in range(12))))


@pytest.mark.parametrize(
    "losses",
    [
        [2.3 - 0.03 * i for i in range(60)],
        [
            2.3 * 0.5**i + x / 1000 for i, x in enumerate(noise(60, 1))
        ],  # all of it in the first steps
        [x - 0.004 * i for i, x in enumerate(noise(60, 2))],
        [*(2.3 - 0.03 * i for i in range(58)), 9.0, 0.4],  # one outlier at the end
    ],
)
def test_a_loss_that_falls_at_any_pace_is_not_said_to_stand(losses: list[float]) -> None:
    assert no_fall(steps(*losses)) == ""


@pytest.mark.parametrize("losses", [[2.3] * 8, [2.3] * 20 + [math.nan], [None] * 30])
def test_few_losses_and_losses_that_are_not_finite_show_no_trend(
    losses: list[float | None],
) -> None:
    assert no_fall(steps(*losses)) == ""


def test_the_course_names_the_ends() -> None:
    assert course(steps(2.5, None, 1.25)) == "the loss went from 2.5 to 1.25"
    assert course(steps(2.5)) == course(steps(2.5, math.inf)) == ""


def test_a_loss_that_is_wrong_now_and_then_names_the_first_step() -> None:
    said = loss_words(steps(1.0, math.inf, 1.0, math.nan, 1.0))
    assert said == "the loss is not finite at 2 of 5 steps (first at step 1)"


def test_all_skipped_means_none_taken() -> None:
    assert no_update(steps(1.0, 1.0, skipped=(0, 1))) == "0 of 2 optimizer steps were taken"
    assert skips(steps(1.0, 1.0, skipped=(0, 1))) == ""
    assert no_update(steps(1.0, 1.0, skipped=(0,))) == no_update([]) == ""
    assert skips(steps(1.0, 1.0, skipped=(0,))) == "1 of 2 optimizer steps were skipped"
