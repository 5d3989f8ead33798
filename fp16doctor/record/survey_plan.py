"""Which steps and modules the survey looks at, and how closely.

Must not know how it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fp16doctor.record.range_hooks import Look

FIRST_FULL, EVERY_FULL = 3, 10  # the first steps and every n-th get full statistics


def sampled(step: int, every: int = EVERY_FULL) -> bool:
    """Whether a step gets full statistics: the first few do, and every ``every``-th."""
    return step < FIRST_FULL or step % every == 0


@dataclass(frozen=True, slots=True)
class SurveyPlan:
    """What the survey looks at."""

    look: Callable[[int], Look] = lambda step: Look.FULL if sampled(step) else Look.SCREEN
    wanted: Callable[[str, nn.Module], bool] = lambda path, module: True
