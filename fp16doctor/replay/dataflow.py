"""Who wrote what on a tape: producers, ancestors, views.

Must not know values.
"""

from __future__ import annotations

from math import prod

from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

MAX_ANCESTORS = 400  # ops looked at on the way up


class Producers:
    """Writers of every storage, in tape order."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._writers: dict[int, list[int]] = {}
        self._views: dict[int, TensorRef] = {}
        for call in tape.ops:
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
        earlier = [i for i in self._writers.get(number, ()) if i < before]
        return earlier[-1] if earlier else None

    def ancestors(self, number: int, before: int) -> list[int]:
        """Return the ops that a storage's value before ``before`` comes from, nearest first."""
        found: dict[int, None] = {}
        queue = [(number, before)]
        while queue and len(found) < MAX_ANCESTORS:
            storage, end = queue.pop(0)
            index = self.last_writer(storage, end)
            if index is None or index in found:
                continue
            found[index] = None
            call = self._tape.ops[index]
            queue.extend((r.storage, index) for r in refs_in((call.args, call.kwargs)))
        return list(found)


def writes(call: OpCall) -> set[int]:
    """Return the storages an op makes or writes."""
    return {*call.mutates, *(r.storage for r in refs_in(call.outputs))}
