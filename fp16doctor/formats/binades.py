"""Exact powers of two and binary exponents of tensors, the ground that rounding and ulps stand on.

Must not know any particular format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_BIAS = 1023  # of fp64
_MANTISSA_BITS = 52  # of fp64


def exponent(values: Tensor) -> Tensor:
    """Return floor(log2 |v|) of finite fp64 ``values`` as int64; -1 for zero.

    ``frexp`` answers with a fraction in [0.5, 1), one binade above.
    """
    return torch.frexp(values).exponent.to(torch.int64) - 1


def power_of_two(exponents: Tensor) -> Tensor:
    """Return 2**e in fp64 for int64 ``exponents``, exact from -1074 to 1023.

    Built from bits, in two factors so that subnormal results are reached; ``pow`` on a GPU may
    be off by one ulp.
    """
    half = torch.div(exponents, 2, rounding_mode="floor")
    return _normal_power(half) * _normal_power(exponents - half)


def _normal_power(exponents: Tensor) -> Tensor:
    return ((exponents + _BIAS) << _MANTISSA_BITS).view(torch.float64)
