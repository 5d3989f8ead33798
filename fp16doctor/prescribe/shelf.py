"""The few steps that are kept for trials: those that went wrong, and some that did not.

Must not know what is tried on them.
"""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.schema.tape import Leaf, Tape
from fp16doctor.schema.trace import EventKind, ReplayTrace

MAX_SICK = 2  # steps in which something non-finite was born
MAX_SOUND = 2  # steps without
MAX_BYTES = 256 * 2**20  # of copies made of one step's leaves


class TapeShelf:
    """Keeps tapes beyond their step: what the script goes on to change is copied."""

    def __init__(self) -> None:
        self._sick: list[Tape] = []
        self._sound: list[Tape] = []

    def offer(self, tape: Tape, trace: ReplayTrace) -> None:
        """Keep a tape if it is complete, small enough, and there is a place for its kind."""
        if not tape.complete or not tape.backward_ends:
            return
        if sum(leaf.data.numel() for leaf in tape.leaves.values()) > MAX_BYTES:
            return
        if any(s.nonfinite_reference for s in trace.sinks if s.sink in ("loss", "gradients")):
            return  # no format helps here: a logic fault, or weights that are lost already
        sick = any(e.kind is not EventKind.INTENDED and not e.in_tail for e in trace.events)
        shelf, most = (self._sick, MAX_SICK) if sick else (self._sound, MAX_SOUND)
        if len(shelf) < most:
            shelf.append(_detached(tape))

    def tapes(self) -> tuple[Tape, ...]:
        """Return the kept steps, those that went wrong first."""
        return (*self._sick, *self._sound)


def _detached(tape: Tape) -> Tape:
    leaves = {n: _copied(leaf) for n, leaf in tape.leaves.items()}
    return replace(tape, leaves=leaves, final={})


def _copied(leaf: Leaf) -> Leaf:
    return replace(leaf, data=leaf.data.clone())
