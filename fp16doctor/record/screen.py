"""Is there an inf or a NaN in a tensor? The cheapest exact answer on each device.

Must not know which op made the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fp16doctor.record import own

FINITE, HAS_INF, HAS_NAN = 0, 1, 2


def by_sum(tensor: Tensor) -> int:
    """Return FINITE, HAS_INF (and no NaN) or HAS_NAN for a real floating CPU tensor.

    The sum of all elements is the fastest reduction, and it is non-finite whenever an element is;
    the opposite does not hold (a sum can overflow by itself), so that a non-finite sum is
    followed by an exact look at the extremes.
    """
    total = tensor.sum().item()
    if total - total == 0:  # neither inf nor NaN
        return FINITE
    return exact(tensor)


def exact(tensor: Tensor) -> int:
    """Return the same from the extremes; one read of the device."""
    found = extremes(tensor)
    return FINITE if found is None else code_of(found[0].item(), found[1].item())


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the least and the greatest element as 0-d tensors; reads nothing back.

    NaN propagates into both. None where there is nothing to see.
    """
    if tensor.numel() == 0 or tensor.dtype not in ON_CPU or tensor.is_meta:
        return None
    if tensor.is_complex():
        tensor = own.view_as_real(tensor.resolve_conj())
    elif tensor.element_size() == 1:
        tensor = tensor.float()
    low, high = own.aminmax(tensor)
    return low, high


def code_of(least: float, most: float) -> int:
    """Return FINITE, HAS_INF or HAS_NAN from the two extremes."""
    if math.isnan(least) or math.isnan(most):
        return HAS_NAN
    return HAS_INF if math.isinf(least) or math.isinf(most) else FINITE


# Formats without a sum of their own (float8) and complex numbers are looked at exactly.
_SUMMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_EXACT = [torch.complex32, torch.complex64, torch.complex128]
_EXACT += [getattr(torch, n) for n in dir(torch) if n.startswith("float8_")]

ON_CPU: dict[torch.dtype, Callable[[Tensor], int]] = {
    **dict.fromkeys(_SUMMED, by_sum),
    **dict.fromkeys(_EXACT, exact),
}
"""Format -> screen; integers and packed formats are not screened."""


def screen(tensor: Tensor) -> int:
    """Return the code of any tensor with storage, at once; FINITE where there is nothing to see."""
    look = ON_CPU.get(tensor.dtype)
    if look is None or tensor.is_meta or tensor.is_quantized:
        return FINITE
    return look(tensor) if tensor.is_cpu else exact(tensor)
