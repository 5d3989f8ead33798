"""The bit layout of torch's floating dtypes, and how their codes fall into binades.

The magnitude code of a number is its bits without the sign, read as an integer; codes order like
magnitudes. Binade ``i`` of a layout holds zero (``i == 0``), the subnormals whose leading bit is
bit ``i - 1`` (``1 <= i <= mantissa``), the normal numbers of exponent field ``i - mantissa``, and
inf and NaN (the last one); the numbers in it have the binary exponent ``i - bias - mantissa``.

Must not know tensors' origins; the formats of diagnoses and replays live in ``formats``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fp16doctor.schema.ranges import RangeStats

EMPTY = RangeStats(numel=0, n_zero=0, n_nan=0, n_inf=0, amax=0.0, amin_nonzero=math.inf)


@dataclass(frozen=True, slots=True)
class Layout:
    """One IEEE-like dtype as integers."""

    dtype: torch.dtype
    integer: torch.dtype  # signed, of the same size
    exponent_bits: int
    mantissa: int  # stored bits
    bias: int

    @property
    def sign(self) -> int:
        """The sign bit; every magnitude code is below it."""
        return 1 << (self.exponent_bits + self.mantissa)

    @property
    def inf(self) -> int:
        """The magnitude code of inf; those above it are NaNs."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa

    @property
    def n_binades(self) -> int:
        """Zero, subnormals, exponent fields 1 to the last."""
        return self.mantissa + (1 << self.exponent_bits)

    def value(self, code: int) -> float:
        """Return the magnitude that a code stands for."""
        if code >= self.inf:
            return math.inf if code == self.inf else math.nan
        field, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if field:
            fraction |= 1 << self.mantissa
        return math.ldexp(fraction, max(field, 1) - self.bias - self.mantissa)

    def histogram(self, counts: Any) -> tuple[tuple[int, int], ...]:
        """Return (binary exponent, count) of the occupied finite non-zero binades."""
        inner = np.asarray(counts)[1:-1]
        occupied = np.flatnonzero(inner)
        exponents = occupied + (1 - self.bias - self.mantissa)
        return tuple(zip(exponents.tolist(), map(int, inner[occupied].tolist()), strict=True))


LAYOUTS = {
    layout.dtype: layout
    for layout in (
        Layout(torch.float16, torch.int16, 5, 10, 15),
        Layout(torch.bfloat16, torch.int16, 8, 7, 127),
        Layout(torch.float32, torch.int32, 8, 23, 127),
        Layout(torch.float64, torch.int64, 11, 52, 1023),
    )
}


def merge(a: RangeStats, b: RangeStats) -> RangeStats:
    """Return the statistics of two tensors together."""
    counts = dict(a.exponents)
    for exponent, count in b.exponents:
        counts[exponent] = counts.get(exponent, 0) + count
    return RangeStats(
        numel=a.numel + b.numel,
        n_zero=a.n_zero + b.n_zero,
        n_nan=a.n_nan + b.n_nan,
        n_inf=a.n_inf + b.n_inf,
        amax=max(a.amax, b.amax),
        amin_nonzero=min(a.amin_nonzero, b.amin_nonzero),
        exponents=tuple(sorted(counts.items())),
        sum_abs=a.sum_abs + b.sum_abs,
    )
