"""Who wrote what on a tape: producers, ancestors, views.

Must not know values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import lru_cache
from math import prod

from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MAX_ANCESTORS = 400  # ops looked at on the way up


class Producers:
    """Writers of every storage, in tape order."""

    def __init__(self, ops: tuple[OpCall, ...]) -> None:
        self._ops = ops
        self._writers: dict[int, list[int]] = {}
        self._views: dict[int, TensorRef] = {}
        for call in ops:
            for number in writes(call):
                self._writers.setdefault(number, []).append(call.index)
            for ref in refs_in((call.args, call.kwargs, call.outputs)):
                known = self._views.get(ref.storage)
                if known is None or prod(ref.shape) > prod(known.shape):
                    self._views[ref.storage] = ref

    def widest_view(self, number: int) -> TensorRef | None:
        """Return the reference that covers most of a storage."""
        return self._views.get(number)

    def writers(self, number: int) -> list[int]:
        """Return all ops that write a storage."""
        return self._writers.get(number, [])

    def last_writer(self, number: int, before: int) -> int | None:
        """Return the last op in front of ``before`` that wrote a storage."""
        writers = self._writers.get(number, [])
        place = bisect_left(writers, before)
        return writers[place - 1] if place else None

    def ancestors(self, number: int, before: int) -> list[int]:
        """Return the ops that a storage's value before ``before`` comes from, nearest first."""
        found: dict[int, None] = {}
        queue = deque([(number, before)])
        while queue and len(found) < MAX_ANCESTORS:
            storage, end = queue.popleft()
            index = self.last_writer(storage, end)
            if index is None or index in found:
                continue
            found[index] = None
            call = self._ops[index]
            queue.extend((r.storage, index) for r in refs_in((call.args, call.kwargs)))
        return list(found)


class _Same:
    """Ops compared by identity."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[OpCall, ...]) -> None:
        self.ops = ops

    def __hash__(self) -> int:
        return id(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.ops is self.ops


def producers_of(tape: Tape) -> Producers:
    """Return the writers of a tape's storages; those of the last two tapes are remembered.

    A step of many backwards asks once for each of its losses.
    """
    return _remembered(_Same(tape.ops))


@lru_cache(maxsize=2)
def _remembered(same: _Same) -> Producers:
    return Producers(same.ops)


def writes(call: OpCall) -> set[int]:
    """Return the storages an op makes or writes."""
    return {*call.mutates, *(r.storage for r in refs_in(call.outputs))}
