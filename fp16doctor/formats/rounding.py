"""Round a tensor to a number format by arithmetic, whether or not torch has the dtype.

Must not know policies or ops (``replay``); ``scalar`` is the slow twin that tests hold beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fp16doctor.errors import Fp16DoctorError
from fp16doctor.formats.binades import exponent, power_of_two

if TYPE_CHECKING:
    from torch import Tensor

    from fp16doctor.formats.number_format import NumberFormat


def round_to(tensor: Tensor, fmt: NumberFormat, *, flush_subnormals: bool = False) -> Tensor:
    """Round every element to the nearest value of ``fmt``, ties to even, subnormals included.

    One rounding from the input's own value, for every floating-point input: fp64 goes to fp16
    directly, while ``tensor.half()`` passes through fp32 and may round twice. NaN stays NaN.

    Args:
        tensor: any floating-point tensor; not changed. Several fp64 copies of it are made.
        fmt: the format whose values are wanted.
        flush_subnormals: results below ``fmt.smallest_normal`` become zeros of their sign, as in
            hardware with flush to zero.

    Returns:
        A new tensor of the same shape: fp64 for fp64 input or format, else fp32, which holds
        every value of the narrower formats exactly.

    Raises:
        Fp16DoctorError: the tensor holds integers or complex numbers.
    """
    if not tensor.is_floating_point():
        raise Fp16DoctorError(
            f"rounding a tensor of {tensor.dtype} to {fmt.name}: only floating-point tensors"
            " have a format; convert it first",
            "not-floating",
        )
    values = tensor.detach().to(torch.float64)
    rounded = _to_spacing(values, fmt)
    rounded = _past_max(rounded, fmt)
    if flush_subnormals or not fmt.has_subnormals:
        flushed = torch.copysign(torch.zeros_like(rounded), rounded)
        rounded = torch.where(rounded.abs() < fmt.smallest_normal, flushed, rounded)
    wide = tensor.dtype == torch.float64 or fmt.mantissa_bits > 23
    return rounded if wide else rounded.to(torch.float32)


def _to_spacing(values: Tensor, fmt: NumberFormat) -> Tensor:
    """Round to the format's spacing, as if it had no largest value."""
    finite = torch.isfinite(values)
    safe = torch.where(finite, values, 0.0)
    binade = exponent(safe).clamp(min=fmt.min_exponent)
    spacing = power_of_two(binade - fmt.mantissa_bits)
    # Both operations are exact: a scaling by a power of two, to at most mantissa_bits + 1 bits.
    rounded = torch.round(safe / spacing) * spacing
    return torch.where(finite, rounded, values)


def _past_max(rounded: Tensor, fmt: NumberFormat) -> Tensor:
    over = rounded.abs() > fmt.max
    end = float("inf") if fmt.has_inf else fmt.max
    return torch.where(over, torch.copysign(torch.full_like(rounded, end), rounded), rounded)
