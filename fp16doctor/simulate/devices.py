"""Which values name a CUDA device.

Must not know what becomes of them.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

_COMPILER = ("torch._inductor", "torch._dynamo", "torch._functorch")
_BETWEEN = ("torch.cuda", "fp16doctor.")
CPU = torch.device("cpu")


def names_cuda(value: Any) -> bool:
    """Tell whether ``value``, given where a device goes, names a CUDA device: "cuda:0", 0."""
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)


def asked_by_compiler(frame: FrameType | None) -> bool:
    """Tell whether torch's compiler asks for a device by itself: it does so in every script."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_COMPILER)
