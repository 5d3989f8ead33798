"""Is there an inf or a NaN in a tensor? The cheapest exact answer on each device.

Must not know which op made the tensor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FINITE, HAS_INF, HAS_NAN = 0, 1, 2


def screen_cpu(tensor: Tensor) -> int:
    """Return FINITE, HAS_INF (and no NaN) or HAS_NAN for a floating CPU tensor.

    The sum of all elements is the fastest reduction, and it is non-finite whenever an element is;
    the opposite does not hold (a sum can overflow by itself), so that a non-finite sum is
    followed by an exact look at the extremes.
    """
    total = tensor.sum().item()
    if total - total == 0:  # neither inf nor NaN
        return FINITE
    return exact(tensor)


def exact(tensor: Tensor) -> int:
    """Return the same from the extremes (aminmax propagates NaN); one read of the device."""
    if tensor.numel() == 0:
        return FINITE
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    low, high = torch.aminmax(tensor)
    least, most = low.item(), high.item()
    if math.isnan(least) or math.isnan(most):
        return HAS_NAN
    return HAS_INF if math.isinf(least) or math.isinf(most) else FINITE


def flag_on_device(tensor: Tensor) -> Tensor:
    """Return a 0-d tensor that is non-finite where ``tensor`` may be; reads nothing back."""
    return tensor.sum(dtype=torch.float32 if tensor.element_size() <= 4 else None)
