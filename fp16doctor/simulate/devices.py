"""Which values name a CUDA device.

Must not know what becomes of them.
"""

from __future__ import annotations

from typing import Any

import torch

CPU = torch.device("cpu")


def names_cuda(value: Any) -> bool:
    """Tell whether ``value``, given where a device goes, names a CUDA device: "cuda:0", 0."""
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)
