"""A scaler that raises its scale so often that it keeps leaving what the gradients hold.

Must not know findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from fp16doctor.schema.recording import StepInfo

LEAST_RAISES = 3
LOST_SHARE = 0.25  # of all attempts: what raising costs from here on
ABOVE = 0.8  # share of the skipped attempts that ran above the scale of a usual step

_Scaled = tuple[tuple[StepInfo, float], ...]


@dataclass(frozen=True, slots=True)
class Raises:
    """How often a scale was raised, and what came of it."""

    times: int
    factor: float  # of one raise
    interval: float  # steps taken for each


def raises_of(attempts: tuple[StepInfo, ...]) -> Raises | None:
    """Return the raises behind the skipped attempts; None where those have another reason."""
    known: _Scaled = tuple((s, s.loss_scale) for s in attempts if s.loss_scale is not None)
    factors = [b / a for (_, a), (_, b) in pairwise(known) if b > a > 0]
    taken = [scale for step, scale in known if not step.skipped]
    lost = [scale for step, scale in known if step.skipped]
    if len(factors) < LEAST_RAISES or not taken or len(lost) <= LOST_SHARE * len(known):
        return None
    if sum(scale > median(taken) for scale in lost) < ABOVE * len(lost):
        return None
    return Raises(len(factors), median(factors), len(taken) / len(factors))
