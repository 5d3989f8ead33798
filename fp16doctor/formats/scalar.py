"""Round one Python float to a number format in exact rational arithmetic, without torch.

Kept apart from ``rounding`` in method, so that tests can hold one against the other.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fp16doctor.formats.number_format import NumberFormat


def round_scalar(value: float, fmt: NumberFormat, *, flush_subnormals: bool = False) -> float:
    """Return the value of ``fmt`` nearest to ``value``, ties to even.

    Args:
        value: any Python float; NaN stays NaN.
        fmt: the format whose values are wanted.
        flush_subnormals: a result below ``fmt.smallest_normal`` becomes a zero of its sign.
    """
    if math.isnan(value):
        return value
    magnitude = abs(value)
    rounded = magnitude if math.isinf(magnitude) else _nearest(magnitude, fmt)
    if rounded > fmt.max:
        rounded = math.inf if fmt.has_inf else fmt.max
    if rounded < fmt.smallest_normal and (flush_subnormals or not fmt.has_subnormals):
        rounded = 0.0
    return math.copysign(rounded, value)


def _nearest(magnitude: float, fmt: NumberFormat) -> float:
    binade = fmt.min_exponent
    if magnitude > 0:
        binade = max(binade, math.frexp(magnitude)[1] - 1)
    spacing = Fraction(2) ** (binade - fmt.mantissa_bits)
    exact = round(Fraction(magnitude) / spacing) * spacing  # round() of a Fraction ties to even
    return math.inf if exact > Fraction(fmt.max) else float(exact)
