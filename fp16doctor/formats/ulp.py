"""Spacing of a format at a value, and distances counted in representable values.

Must not know what an acceptable distance is (``prescribe.acceptance``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fp16doctor.formats.binades import exponent, power_of_two
from fp16doctor.formats.rounding import round_to

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.formats.number_format import NumberFormat


def ulp_size(tensor: Tensor, fmt: NumberFormat) -> Tensor:
    """Return the spacing of ``fmt`` in the binade of every element, as fp64.

    Below ``smallest_normal`` (zero included) it is the smallest subnormal, above ``max`` the
    spacing at ``max``; NaN for inf and NaN, as ``numpy.spacing`` has it.
    """
    values = tensor.detach().to(torch.float64)
    finite = torch.isfinite(values)
    binade = exponent(torch.where(finite, values, 0.0))
    binade = torch.where(values == 0, fmt.min_exponent, binade)
    binade = binade.clamp(fmt.min_exponent, fmt.max_exponent)
    spacing = power_of_two(binade - fmt.mantissa_bits)
    return torch.where(finite, spacing, float("nan"))


def ulp_distance(left: Tensor, right: Tensor, fmt: NumberFormat) -> Tensor:
    """Return how many steps of ``fmt`` lie between the elements, both rounded to it first.

    Neighbours are 1 apart; so are ``max`` and inf; the two zeros are 0 apart. Subnormals count
    whether or not hardware keeps them.

    Args:
        left: floating-point tensor.
        right: floating-point tensor that broadcasts with ``left``.
        fmt: the format whose steps are counted.

    Returns:
        fp64, whole numbers; NaN where either element is NaN. Exact up to 2**53, which only fp64
        distances exceed.
    """
    a, b = round_to(left, fmt).to(torch.float64), round_to(right, fmt).to(torch.float64)
    steps_a, steps_b = _steps_from_zero(a, fmt), _steps_from_zero(b, fmt)
    apart = (steps_a - steps_b).abs().to(torch.float64)
    across = steps_a.to(torch.float64) + steps_b.to(torch.float64)
    distance = torch.where(torch.signbit(a) == torch.signbit(b), apart, across)
    return torch.where(torch.isnan(a) | torch.isnan(b), float("nan"), distance)


def _steps_from_zero(values: Tensor, fmt: NumberFormat) -> Tensor:
    """Return the number of steps from zero to |values|: the format's code without its sign."""
    magnitude = values.abs()
    finite = torch.isfinite(magnitude)
    safe = torch.where(finite, magnitude, 0.0)
    binade = exponent(safe).clamp(min=fmt.min_exponent)
    binade = torch.where(safe == 0, fmt.min_exponent, binade)
    within = (safe / power_of_two(binade - fmt.mantissa_bits)).to(torch.int64)
    steps = (binade - fmt.min_exponent) * 2**fmt.mantissa_bits + within
    past_max = (fmt.max_exponent - fmt.min_exponent + 2) * 2**fmt.mantissa_bits
    return torch.where(finite, steps, past_max)
