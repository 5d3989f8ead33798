"""Finds weights whose 16-bit cast of an earlier step is read after they were updated.

Autocast keeps the casts of weights until its outermost block is left; around the whole loop it
never is. Must not know what the script lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of
from fp16doctor.record.usage.step_view import Seen, StepView
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

_CAST = "aten._to_copy.default"
_LOW = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS)

# address of a cast's storage -> (weak reference that keeps the address, its format)
Casts = dict[int, tuple[Any, str]]


def stale_casts(view: StepView, casts: Casts) -> Iterator[Seen]:
    """Yield the first op of forward that reads a cast made before an earlier update."""
    roll = view.roll
    mine = {n: casts[a][1] for a, n in roll.ids.items() if a in casts and n in roll.leaves}
    if not mine or not view.marks.backward_ends:
        return
    for index, op in enumerate(view.ops):
        if mine.keys() & set(op.written):
            return  # the script refreshes its own copy
        read = reads_of(op) & mine.keys()
        if read and op.where[3] in _BEFORE_BACKWARD:
            facts = {"format": mine[min(read)]}
            yield Seen(UsageKind.STALE_CAST, op.where, index, op.where[3], op.info.name, facts)
            return


def remember_casts(view: StepView, casts: Casts) -> None:
    """Keep the casts of this step's weights that outlive it; drop those that are gone."""
    roll = view.roll
    for address in [a for a, (weak, _) in casts.items() if weak.expired()]:
        del casts[address]
    written = {n for op in view.ops for n in op.written}
    for address in [a for a in casts if roll.ids.get(a) in written]:
        del casts[address]
    for op in view.ops:
        if op.info.name == _CAST and op.where[3] in _BEFORE_BACKWARD:
            _remember(view, op, casts, written)


def _remember(view: StepView, op: RawOp, casts: Casts, written: set[int]) -> None:
    roll, out, source = view.roll, op.outputs, op.args[0]
    if type(out) is not tuple or type(source) is not tuple or out[1] not in _LOW:
        return
    weak = roll.weak.get(out[0])
    # Only weights that were updated in this step can be stale in the next.
    updated = source[0] in roll.params and source[0] in written and out[0] not in written
    if updated and weak is not None and not weak.expired():
        casts[weak.cdata] = (weak, _LOW[out[1]])
