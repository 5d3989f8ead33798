"""Whether values that grow from step to step are about to leave their format.

Must not know what is done about it.
"""

from __future__ import annotations

import math

import torch
from torch import finfo

AHEAD = 2  # steps that the growth of the last one is carried on for
# More growth in one step than this share of the format's range, in binades, is an outlier: it is
# carried on no further, so that small values that jump do not count.
MOST_GROWTH = 0.25
LOSS_JUMP = 8.0  # a loss that grew by this factor in one step tells of what the modules may not

_limits: dict[torch.dtype, float] = {}


def limit_of(dtype: torch.dtype) -> float:
    """Return the largest finite value of a floating-point dtype."""
    known = _limits.get(dtype)
    if known is None:
        known = _limits[dtype] = finfo(dtype).max
    return known


def nears_limit(now: float, before: float, limit: float) -> bool:
    """Tell whether ``now`` passes ``limit`` if it goes on growing as since ``before``.

    Args:
        now: largest finite magnitude of a step, in the tensor's own units; 0.0 for none.
        before: that of the step before.
        limit: the format's largest finite value; inf where it is not known.
    """
    if not 0.0 < before < now or math.isinf(limit):
        return False
    range_ = math.log2(limit)
    growth = min(math.log2(now) - math.log2(before), MOST_GROWTH * range_)
    return math.log2(now) + AHEAD * growth >= range_


def loss_jumps(now: float | None, before: float | None) -> bool:
    """Tell whether a finite loss is ``LOSS_JUMP`` times as large as that of the step before."""
    if now is None or before is None or not (math.isfinite(now) and math.isfinite(before)):
        return False
    return abs(now) >= LOSS_JUMP * abs(before) > 0.0
