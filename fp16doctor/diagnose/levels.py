"""The level that a loss has, and when it has left it.

Must not know why it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import median

JUMP = 100.0  # times the median magnitude of the losses before
FEWEST = 3  # losses that make a level


def leaves_level(loss: float | None, before: Sequence[float]) -> bool:
    """Tell whether a loss is above all that the finite losses before it explain."""
    if loss is None or not isfinite(loss) or len(before) < FEWEST:
        return False
    return loss > JUMP * median(map(abs, before)) > 0
