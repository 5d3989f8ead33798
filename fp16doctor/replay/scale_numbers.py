"""Divisions by the loss scale whose number Python read off the scaler: `grad / scaler.get_scale()`.

On a tape they are plain numbers. They belong to the scale, and change with it.

Must not know why a scale is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.replay.dataflow import writes
from fp16doctor.replay.op_traits import base
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall, Tape, refs_in

LEAST = 64.0  # a smaller number is an average as well
MOST_AVERAGED = 64  # micro-batches or ranks that may be divided out in the same number
_PRODUCTS, _QUOTIENTS = ("mul", "_foreach_mul"), ("div", "_foreach_div")


def numbers_rescaled(tape: Tape, old: float, new: float) -> Tape:
    """Return the step with ``new`` for the scale in every number that divides by ``old``."""
    if old == new or old < LEAST:
        return tape
    places = set(_divisions(tape, old))
    if not places:
        return tape
    ops = (_times(c, old / new) if c.index in places else c for c in tape.ops)
    return replace(tape, ops=tuple(ops))


def _divisions(tape: Tape, scale: float) -> Iterator[int]:
    """Yield the ops that divide what a backward made, and the same in a later backward."""
    derived: set[int] = set()
    lines: set[tuple[object, float]] = set()
    forward = {c.site.source for c in tape.ops if c.site.phase is not Phase.BACKWARD}
    for call in tape.ops:
        factor, line = _factor(call), call.site.source
        divides = factor is not None and _is_of_the_scale(call, factor * scale)
        if call.site.phase is Phase.BACKWARD:
            derived |= writes(call)
            hook = line is not None and line not in forward  # only backward runs it
            if factor is not None and ((line, factor) in lines or (hook and divides)):
                yield call.index
            continue
        if derived.isdisjoint(r.storage for r in refs_in((call.args, call.kwargs))):
            continue
        derived |= writes(call)
        if factor is not None and divides:
            lines.add((line, factor))
            yield call.index


def _is_of_the_scale(call: OpCall, product: float) -> bool:
    """Tell whether a factor is one over the scale, or over the scale and a whole number."""
    if product <= 0:
        return False
    most = MOST_AVERAGED if call.site.phase is Phase.OPTIMIZER else 1
    whole = round(1 / product)
    return 1 <= whole <= most and abs(whole * product - 1) < 1e-3


def _factor(call: OpCall) -> float | None:
    name, args = base(call.op).rstrip("_"), call.args
    if name not in _PRODUCTS + _QUOTIENTS or len(args) < 2 or call.kwargs:
        return None
    value = args[1]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value:
        return None
    return float(value) if name in _PRODUCTS else 1 / float(value)


def _times(call: OpCall, ratio: float) -> OpCall:
    value = call.args[1]
    changed = value * ratio if base(call.op).rstrip("_") in _PRODUCTS else value / ratio
    return replace(call, args=(call.args[0], changed, *call.args[2:]))
