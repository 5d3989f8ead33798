"""The name of a model inside the LightningModule that calls it: what its state_dict says.

A LightningModule's ``training_step`` is no forward, so the model in it is called from outside all
modules. Must not know what else is called from there.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

_KIND = "LightningModule"
_DEPTH = 16  # frames between the call of a model and the method that calls it, ours included


def name_in_owner(root: nn.Module) -> str:
    """Return the name of ``root`` in the LightningModule whose method calls it, else ""."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(owner, nn.Module) and owner is not root and _is_lightning(owner):
            return next((name for name, m in owner.named_modules() if m is root), "")
        frame = frame.f_back
    return ""


def _is_lightning(module: nn.Module) -> bool:
    return any(c.__name__ == _KIND for c in type(module).__mro__)
