"""Fixup's initial weights in a running script, set before the first forward of the model.

The code that a user pastes is run as it stands: what is confirmed is what the report says.
Must not know how the factors are found.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from fp16doctor.apply.line_edit import line_edit
from fp16doctor.apply.part import Order, Part
from fp16doctor.apply.roots import at_roots

_MODEL = re.compile(r"[\w.]+(?=\.get_parameter\()")  # as the script calls it


def part(order: Order) -> Part:
    """Return the script with the remedy's code, else what runs it on the first model it fits."""
    edited = line_edit(order)
    if edited is not None:
        return edited
    target = order.remedy.target[0] if order.remedy.target else ""
    stem = target.partition(":")[2].rstrip("*").rstrip(".")  # "" is the model itself
    code = compile(_MODEL.sub("model", order.remedy.change), "<fixup>", "exec")
    done: list[bool] = []

    def first_call(root: nn.Module) -> None:
        if done or not any(name == stem for name, _ in root.named_modules()):
            return
        exec(code, {"torch": torch, "model": root})
        done.append(True)

    return Part(outer=(at_roots(first_call),), missed=lambda: () if done else order.remedy.target)
