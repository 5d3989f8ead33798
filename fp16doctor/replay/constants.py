"""Python scalars among the arguments of a call: infinite ones, ones a format cannot hold.

Must not know births.
"""

from __future__ import annotations

import math

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.schema.tape import OpCall

# Ops that put a Python scalar into a tensor, or add it to one.
_TAKE_CONSTANTS = frozenset(
    [
        "add",
        "add_",
        "fill_",
        "full",
        "full_like",
        "masked_fill",
        "masked_fill_",
        "mul",
        "mul_",
        "new_full",
        "scalar_tensor",
        "sub",
        "sub_",
        "where",
    ]
)


def has_infinite(call: OpCall) -> bool:
    """Tell whether an argument is inf or −inf."""
    return any(math.isinf(n) for n in _numbers(call))


def beyond(call: OpCall, fmt: str) -> float | None:
    """Return a finite scalar that the op puts into a tensor and ``fmt`` cannot hold."""
    if op_traits.base(call.op) not in _TAKE_CONSTANTS:
        return None
    limit = get_format(fmt).overflow_threshold
    return next((n for n in _numbers(call) if math.isfinite(n) and abs(n) >= limit), None)


def _numbers(call: OpCall) -> list[float]:
    """Return the scalar arguments; numbers in lists are sizes and dimensions."""
    values = [*call.args, *call.kwargs.values()]
    return [_as_float(v) for v in values if isinstance(v, (int, float)) and type(v) is not bool]


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer past fp64
        return math.copysign(math.inf, value)
