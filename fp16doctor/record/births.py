"""Which recorded ops made an inf or a NaN out of finite inputs, as far as the screen saw it.

Cheap and by storage; the replay judges exactly. Must not know what a birth means.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from fp16doctor.record import own
from fp16doctor.record.roll import LeafStorage, RawOp, RawRef, Roll
from fp16doctor.record.screen import FINITE, HAS_NAN, code_of, screen
from fp16doctor.record.split import writes_of
from fp16doctor.schema.location import Phase


@dataclass(frozen=True, slots=True)
class Birth:
    """One suspected birth."""

    index: int  # op on the tape
    key: Hashable  # the same for the same line, op and kind in every step
    phase: Phase


def births(roll: Roll) -> list[Birth]:
    """Return the ops whose outputs are worse than everything they read, in tape order.

    An infinite constant in the call (a mask of −inf) counts as read.
    """
    if not roll.n_flagged:
        return []
    seen = _Seen(roll)
    found = []
    for index, op in enumerate(roll.ops):
        if op.code and op.code > seen.worst_read(op):
            found.append(Birth(index, _key(op), op.where[3]))
        seen.note(op)
    return found


def given(roll: Roll) -> list[Birth]:
    """Return the first op that reads an inf or NaN from outside the step, if it may do harm.

    Infinities are a mask as a rule: they count only where backward had something non-finite too.
    What is made ready for the next step, and not taken in by this one, counts there.
    """
    if not roll.n_flagged:
        return []
    late = any(op.code and op.where[3] is Phase.BACKWARD for op in roll.ops)
    seen = _Seen(roll)
    for index, op in enumerate(roll.ops):
        code = seen.worst_given(op) if op.code else FINITE
        if code and (late or code == HAS_NAN) and _is_taken_in(roll.ops[index:]):
            return [Birth(index, ("given", _key(op)), op.where[3])]
        seen.note(op)
    return []


def spoils(roll: Roll) -> list[Birth]:
    """Return the first op that puts an inf or NaN into a parameter that was finite.

    A constant or a value from outside counts: what the next step reads is made here.
    """
    if not roll.n_flagged:
        return []
    seen = _Seen(roll)
    for index, op in enumerate(roll.ops):
        sick = {number for number, _, _ in op.sick or ()}
        hurt = sick.intersection(op.written) & roll.params.keys()
        if any(not seen.was_sick(number) for number in hurt):
            return [Birth(index, ("spoils", _key(op)), op.where[3])]
        seen.note(op)
    return []


def _is_taken_in(ops: list[RawOp]) -> bool:
    return any(op.code and op.where[3] in (Phase.FORWARD, Phase.LOSS) for op in ops)


class _Seen:
    """What is known of the storages while going along the tape."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._bad: dict[int, tuple[int, int]] = {}  # storage -> (code, bytes of the sick view)
        self._leaves: dict[int, int] = {}  # leaf -> what it held at its first use

    def worst_read(self, op: RawOp) -> int:
        """Return the worst code among the arguments."""
        return max(map(self._code, _flat([*op.args, *op.kwargs.values()])), default=FINITE)

    def worst_given(self, op: RawOp) -> int:
        """Return the worst code among the arguments that come from outside the step."""
        refs = (v for v in _flat([*op.args, *op.kwargs.values()]) if type(v) is tuple)
        return max((self._leaf(r[0], r) for r in refs), default=FINITE)

    def was_sick(self, number: int) -> bool:
        """Tell whether a storage held an inf or NaN in front of the op."""
        if number in self._bad:
            return True
        leaf = self._roll.leaves.get(number)
        parameter = self._roll.params.get(number)
        if leaf is None or parameter is None:
            return False
        strides = (parameter.dtype, tuple(parameter.shape), parameter.stride())
        ref: RawRef = (number, *strides, parameter.storage_offset())
        return bool(self._leaf(number, ref))

    def note(self, op: RawOp) -> None:
        """Take over what the screen saw in an op's results."""
        sick = {number: (code, size) for number, code, size in op.sick or ()}
        for number in writes_of(op):
            if number in sick:
                self._bad[number] = max(self._bad.get(number, sick[number]), sick[number])
                continue
            size = _size_written(op, number)
            if number in self._bad and size >= self._bad[number][1]:
                del self._bad[number]
            if number in self._roll.leaves and size >= self._roll.leaves[number].storage.nbytes():
                self._leaves[number] = FINITE

    def _code(self, value: Any) -> int:
        if isinstance(value, float):
            return code_of(value, value)
        if type(value) is not tuple:
            return FINITE
        number = value[0]
        code, _ = self._bad.get(number, (FINITE, 0))
        return max(code, self._leaf(number, value))

    def _leaf(self, number: int, ref: RawRef) -> int:
        """Look at a leaf the first time it matters."""
        code = self._leaves.get(number)
        if code is None:
            leaf = self._roll.leaves.get(number)
            code = FINITE if leaf is None else _screen_leaf(leaf, ref)
            self._leaves[number] = code
        return code


def _screen_leaf(leaf: LeafStorage, ref: RawRef) -> int:
    if leaf.storage.device.type == "meta":
        return FINITE
    _, dtype, shape, stride, offset = ref
    view = own.empty(0, dtype=dtype, device=leaf.storage.device)
    return screen(view.set_(leaf.bytes, offset, shape, stride))


def _flat(value: Any) -> Iterator[Any]:
    """Yield references and primitives of a nest of lists."""
    if type(value) is list:
        for v in value:
            yield from _flat(v)
    else:
        yield value


def _size_written(op: RawOp, number: int) -> int:
    """Return the bytes of the largest view of a storage that an op made or wrote."""
    nests = (op.outputs, op.args) if number in op.written else (op.outputs,)
    refs = (r for nest in nests for r in _flat(nest))
    sizes = [math.prod(r[2]) * r[1].itemsize for r in refs if type(r) is tuple and r[0] == number]
    return max(sizes, default=0)


def _key(op: RawOp) -> Hashable:
    source, _, module, phase = op.where
    return (op.info.name, source, module.path if module else None, phase, op.code)
