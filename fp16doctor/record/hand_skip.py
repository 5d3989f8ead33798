"""Whether a script left out the optimizer step of a backward by itself, because of inf or NaN.

A loss scaler written by hand does that: it asks whether the gradients are finite, halves its scale
and goes on with the next batch. Like a step that ``GradScaler`` skips, the pass is an attempt.

Must not know what becomes of the step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fp16doctor.record.roll import RawOp, Roll, numbers
from fp16doctor.record.split import reads_of, writes_of

_READS = frozenset({"aten._local_scalar_dense.default", "aten.is_nonzero.default"})
_ZEROS = ("aten.zero_.", "aten._foreach_zero_.")


def left_out(roll: Roll, behind: int, gradients: Iterable[int]) -> bool:
    """Tell whether gradients were not finite, and asked for it or thrown away since op ``behind``.

    ``gradients`` are their storages. A pass whose gradients are kept and not asked about is one
    part of a batch: accumulation.
    """
    mine = set(gradients)
    if not _hurt(roll, mine):
        return False
    after = roll.ops[behind:]
    return _asked(after, set(mine)) or _thrown_away(roll.params.values(), after, mine)


def _hurt(roll: Roll, gradients: set[int]) -> bool:
    if roll.pending:
        roll.read_flags([])
    sick = (number for op in roll.ops if op.sick for number, _, _ in op.sick)
    return any(number in gradients for number in sick)


def _asked(ops: list[RawOp], tainted: set[int]) -> bool:
    """Tell whether Python read a truth value that was computed of the gradients."""
    for op in ops:
        if tainted.isdisjoint(reads_of(op)):
            continue
        if op.info.name in _READS and _is_truth(op):
            return True
        tainted |= writes_of(op)
    return False


def _is_truth(op: RawOp) -> bool:
    first = op.args[0]
    return type(first) is tuple and first[1] is torch.bool


def _thrown_away(parameters: Iterable[Tensor], ops: list[RawOp], gradients: set[int]) -> bool:
    if all(p.grad is None for p in parameters):
        return True
    zeroed = (op for op in ops if op.info.name.startswith(_ZEROS))
    return any(not gradients.isdisjoint(numbers(op.args)) for op in zeroed)
