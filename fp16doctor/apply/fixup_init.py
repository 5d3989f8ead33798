"""Fixup's initial weights in a running script, set before the first forward of the model.

The code that a user pastes is run as it stands: what is confirmed is what the report says.
Must not know how the factors are found.
"""

from __future__ import annotations

import torch
from torch import nn

from fp16doctor.apply.part import Order, Part
from fp16doctor.apply.roots import at_roots


def part(order: Order) -> Part:
    """Return the context that runs the remedy's own code on the first model that it fits."""
    target = order.remedy.target[0] if order.remedy.target else ""
    stem = target.partition(":")[2].rstrip("*").rstrip(".")  # "" is the model itself
    code = compile(order.remedy.change, "<fixup>", "exec")
    done: list[bool] = []

    def first_call(root: nn.Module) -> None:
        if done or not any(name == stem for name, _ in root.named_modules()):
            return
        exec(code, {"torch": torch, "model": root})
        done.append(True)

    return Part(outer=(at_roots(first_call),), missed=lambda: () if done else order.remedy.target)
