"""Finds gradients that a hook divides by the loss scale while backward still runs.

Must not know what comes of it.
"""

from __future__ import annotations

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.factors import is_inverse
from fp16doctor.record.usage.step_view import (
    PRODUCTS,
    Backward,
    StepView,
    base_of,
    number_factor,
)


def is_product(name: str) -> bool:
    """Tell whether an op, by its full name, is an elementwise product or quotient."""
    return name.split(".")[1].strip("_").removeprefix("foreach_") in PRODUCTS


def divided_inside(view: StepView, backward: Backward) -> set[int]:
    """Return the storages that descend from a hook's division by the scale."""
    hooked = {i for i in view.calls.hooked if backward.first <= i < backward.last}
    if not hooked:
        return set()
    scale = backward.scaling.factor or view.scale()
    found: set[int] = set()
    for index in range(min(hooked), backward.last):
        op = view.ops[index]
        if not found.isdisjoint(reads_of(op)) or (index in hooked and _divides(op, scale)):
            found |= writes_of(op)
        else:
            found -= writes_of(op)
    return found


def _divides(op: RawOp, scale: float | None) -> bool:
    """By the scale, or by a one-element tensor, which may hold it."""
    factor = number_factor(op)
    if factor is not None:
        return scale is not None and is_inverse(factor, scale)
    if base_of(op) not in PRODUCTS or len(op.args) < 2:
        return False
    other = op.args[1]
    return type(other) is tuple and not len(other[2])
