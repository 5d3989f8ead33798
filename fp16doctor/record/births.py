"""Which recorded ops made an inf or a NaN out of finite inputs, as far as the screen saw it.

Cheap and by storage; the replay judges exactly. Must not know what a birth means.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from fp16doctor.record.roll import RawOp, Roll
from fp16doctor.schema.location import Phase


@dataclass(frozen=True, slots=True)
class Birth:
    """One suspected birth."""

    index: int  # op on the tape
    key: Hashable  # the same for the same line, op and kind in every step
    phase: Phase


def births(roll: Roll) -> list[Birth]:
    """Return the ops whose outputs are worse than everything they read, in tape order."""
    if not roll.n_flagged:
        return []
    return [
        Birth(i, _key(op), op.where[3]) for i, op in enumerate(roll.ops) if op.code > op.reads_bad
    ]


def _key(op: RawOp) -> Hashable:
    source, _, module, phase = op.where
    return (op.info.name, source, module.path if module else None, phase, op.code)
