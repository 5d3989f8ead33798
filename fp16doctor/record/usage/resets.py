"""Which writes leave nothing of the value that was there before.

Must not know what carries a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from fp16doctor.record import own
from fp16doctor.record.roll import RawOp, RawRef, Roll
from fp16doctor.record.split import writes_of
from fp16doctor.record.usage.step_view import base_of, first_ref, number_factor
from fp16doctor.schema.location import Phase

_RESETS = frozenset({"zero", "fill", "copy"})


class Resets:
    """Asked about each op of a step in order: it remembers which storages are equal copies."""

    def __init__(self, roll: Roll, gradients: dict[int, int]) -> None:
        self._roll, self._gradients = roll, gradients
        self._sizes = _widest(roll, gradients)
        self._copies: dict[int, int] = {}  # storage -> the gradient it is an equal copy of

    def of(self, op: RawOp) -> set[int]:
        """Storages that start afresh with this op."""
        found = set(self._whole(op)) if op.written and self._is_reset(op) else set()
        self._remember(op)
        return found

    def _whole(self, op: RawOp) -> Iterator[int]:
        """Storages that the op writes as a whole: one row of a gradient is not all of it."""
        for ref in _refs([op.args, op.outputs]):
            number = ref[0]
            if number not in op.written:
                continue
            mine = self._roll.params.get(self._gradients.get(number, -1))
            if mine is None or prod(ref[2]) >= mine.numel() or self._is_one_of_many(ref, mine):
                yield number

    def _is_one_of_many(self, ref: RawRef, last: Tensor) -> bool:
        """Tell whether many gradients lie in one buffer, and this may be one of them."""
        shared = self._sizes[ref[0]] > last.numel()
        return shared and any(p.numel() == prod(ref[2]) for p in self._roll.params.values())

    def _is_reset(self, op: RawOp) -> bool:
        base = base_of(op)
        # Inside backward a copy brings back the sum that other ranks were added to.
        if base in _RESETS and (base != "copy" or op.where[3] is not Phase.BACKWARD):
            return True
        return number_factor(op) == 0 or (base == "sub" and self._is_same(op))

    def _is_same(self, op: RawOp) -> bool:
        """Tell whether both operands are the same values."""
        one, other = op.args[:2]
        if type(one) is not tuple or type(other) is not tuple or op.kwargs:
            return False
        same: bool = one[1:3] == other[1:3]
        return same and (one == other or self._copies.get(other[0]) == one[0])

    def _remember(self, op: RawOp) -> None:
        if self._copies:
            written = writes_of(op)
            pairs = self._copies.items()
            self._copies = {a: b for a, b in pairs if a not in written and b not in written}
        if op.info.name == "aten.clone.default" and type(op.outputs) is tuple:
            source = first_ref(op.args)
            if source is not None and source[0] in self._gradients:
                self._copies[op.outputs[0]] = source[0]


def _widest(roll: Roll, gradients: dict[int, int]) -> dict[int, int]:
    """Return the elements of the largest view of each gradient's storage."""
    sizes = dict.fromkeys(gradients, 0)
    for op in roll.ops:
        for ref in _refs([op.args, op.outputs]):
            if ref[0] in sizes:
                sizes[ref[0]] = max(sizes[ref[0]], prod(ref[2]))
    return sizes


def _refs(value: Any) -> Iterator[RawRef]:
    if type(value) is tuple:
        yield value
    elif type(value) is list:
        for v in value:
            yield from _refs(v)


def came_in_as_zero(roll: Roll, number: int) -> bool:
    """Tell whether a storage held zeros when the step first used it: numpy writes without an op."""
    leaf = roll.leaves.get(number)
    if leaf is None or leaf.copy is None:
        return False
    stored = own.empty(0, dtype=torch.uint8, device=leaf.copy.device).set_(leaf.copy)
    return not bool(stored.any())
