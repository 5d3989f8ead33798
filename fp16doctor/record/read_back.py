"""The one place where numbers are read from a device: once a step, all together.

Must not know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fp16doctor.record import own


def read_back(vectors: Sequence[Tensor]) -> list[list[float]]:
    """Return tensors of any shape as flat lists of fp64 numbers: one transfer a device."""
    results: list[list[float]] = [[] for _ in vectors]
    by_device: dict[torch.device, list[int]] = {}
    for place, vector in enumerate(vectors):
        by_device.setdefault(vector.device, []).append(place)
    for places in by_device.values():
        flat = own.cat([vectors[p].reshape(-1).double() for p in places])
        numbers: list[float] = flat.tolist()
        at = 0
        for p in places:
            size = vectors[p].numel()
            results[p], at = numbers[at : at + size], at + size
    return results
