"""Which number may stand in for one that a format cannot hold, without a change of what is meant.

Must not know how a changed number is tried.
"""

from __future__ import annotations

from math import isfinite

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.tape import OpCall, refs_in

_NAMES = {"float16": "fp16", "bfloat16": "bf16"}
# A bound or a mask value is as good at the end of the format's range as beyond it.
_BOUNDS = frozenset(
    ("clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "hardtanh")
)
_MASKS = frozenset(("masked_fill", "masked_fill_"))


def format_name(call: OpCall) -> str | None:
    """Return the 16-bit format that a call is asked to make, else that of its first tensor."""
    asked = call.kwargs.get("dtype")
    if asked is not None:
        return _NAMES.get(str(asked).removeprefix("torch."))
    first = next(iter(refs_in((call.args, call.kwargs))), None)
    return None if first is None else _NAMES.get(first.dtype)


def beyond_format(call: OpCall) -> float | None:
    """Return a finite number among the arguments that the format of its tensor cannot hold."""
    name = format_name(call)
    if name is None:
        return None
    limit = get_format(name).max
    return next((v for v in numbers(call) if isfinite(v) and abs(v) > limit), None)


def numbers(call: OpCall) -> tuple[float, ...]:
    """Return the numbers among the arguments of a call, lists of sizes left out."""
    values = (v for v in (*call.args, *call.kwargs.values()) if isinstance(v, (int, float)))
    return tuple(float(v) for v in values if type(v) is not bool)


def is_beyond(call: OpCall) -> bool:
    """Tell whether a call is given a number that the format of its tensor cannot hold."""
    return beyond_format(call) is not None


def within_format(call: OpCall) -> float | None:
    """Return the end of the format's range that stands in for such a number.

    None where the op computes with the number: there another one is another result.
    """
    number, name = beyond_format(call), format_name(call)
    if number is None or name is None or base(call.op) not in _BOUNDS | _MASKS:
        return None
    top = get_format(name).max
    return -top if number < 0 else top
