"""Limits of the format an event names, and how far beyond them a value lies.

Must not know events or rules.
"""

from __future__ import annotations

import math

from fp16doctor.formats import NumberFormat, all_formats, get_format


def limits(name: str) -> NumberFormat:
    """The format ``name``; fp64, the widest, where the name is no real format (complex64)."""
    known = {fmt.name for fmt in all_formats()}
    return get_format(name if name in known else "fp64")


def fits(value: float | None, format_name: str) -> bool:
    """Whether ``value`` is finite and rounds to a finite number of the format."""
    if value is None or not math.isfinite(value):
        return False
    return abs(value) < limits(format_name).overflow_threshold


def halvings_to_fit(magnitude: float, format_name: str) -> int:
    """Smallest k ≥ 0 for which magnitude / 2^k rounds to a finite number of the format."""
    threshold = limits(format_name).overflow_threshold
    if not math.isfinite(magnitude) or magnitude < threshold:
        return 0
    # From exponents, which is exact where log2 of the quotient is not.
    (mantissa, exponent), (limit, limit_exponent) = math.frexp(magnitude), math.frexp(threshold)
    return exponent - limit_exponent + (1 if mantissa >= limit else 0)
