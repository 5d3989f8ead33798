"""The few steps that are kept for trials.

Those that went wrong, some that did not, and a run of consecutive ones.
Must not know what is tried on them.
"""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.prescribe.links import Links
from fp16doctor.schema.precision import FAR_OFF
from fp16doctor.schema.tape import Leaf, Tape
from fp16doctor.schema.trace import ReplayTrace

MAX_SICK = 2  # steps in which something non-finite was born
MAX_SOUND = 2  # steps without
MAX_BEYOND = 2  # steps whose reference is not finite either, though their weights were
WINDOW = 10  # consecutive steps from the start, or from the first one that went wrong
MAX_WINDOW = 20
MAX_BYTES = 256 * 2**20  # of copies made of one step's leaves
MAX_WINDOW_BYTES = 16 * 2**20  # the same for each of the consecutive steps


class TapeShelf:
    """Keeps tapes beyond their step: what the script goes on to change is copied."""

    def __init__(self) -> None:
        self._sick: list[Tape] = []
        self._sound: list[Tape] = []
        self._beyond: list[Tape] = []
        self._window: list[Tape] = []
        self._links = Links()
        self._until = WINDOW
        self._ill_since: int | None = None
        self._off = 0.0  # largest gradient error of a kept step by what rounding lost
        self.refused: Tape | None = None  # up to a call that raised, at the run's end

    def refuse(self, tape: Tape | None) -> None:
        """Keep the step that ended in a call which raised."""
        if tape is not None and size_of(tape) <= MAX_BYTES:
            self.refused = detached(tape)

    def wants(self, step: int) -> bool:
        """Tell whether a step belongs to the run of consecutive ones."""
        if step >= self._until or len(self._window) >= MAX_WINDOW:
            return False
        return not self._window or self._window[-1].step == step - 1

    def offer(self, tape: Tape, trace: ReplayTrace) -> None:
        """Keep an examined tape if it is complete, small enough, and there is a place for it."""
        if not tape.complete or not tape.losses or size_of(tape) > MAX_BYTES:
            return
        if any(s.nonfinite_reference for s in trace.sinks if s.sink in ("loss", "gradients")):
            self._keep_beyond(tape, trace)
            return  # no format helps here: a logic fault, or weights that are lost already
        sick = any(not (e.harmless or e.in_tail) for e in trace.events)
        if sick and any(e.reaches for e in trace.events):
            self._fell_ill(tape.step)
        shelf, most = (self._sick, MAX_SICK) if sick else (self._sound, MAX_SOUND)
        off = _off_by_rounding(trace)
        if len(shelf) < most:
            shelf.append(detached(tape))
            self._off = max(self._off, off)
        elif not sick and off >= FAR_OFF > self._off:
            shelf[-1], self._off = detached(tape), off  # the steps so far do not show the fault

    def _keep_beyond(self, tape: Tape, trace: ReplayTrace) -> None:
        """Keep a step for a change of its code, where it was given nothing that is lost."""
        given = any(p.is_parameter or p.is_buffer or p.reaches for p in trace.poisons)
        if len(self._beyond) < MAX_BEYOND and not given:
            self._beyond.append(detached(tape))

    def _fell_ill(self, step: int) -> None:
        """Follow the run from its first bad step on."""
        if self._ill_since is not None:
            return
        self._ill_since = step
        self._until = step + WINDOW
        if self._window and self._window[-1].step < step - 1:
            self._window.clear()
            self._links = Links()

    def start_at(self, tape: Tape) -> None:
        """Let the run of consecutive steps begin with this one, a step of interest."""
        if self._ill_since is not None or any(t.step == tape.step for t in self._window):
            return
        self._window.clear()
        self._links = Links()
        self._until = tape.step + WINDOW
        self.follow(tape)

    def follow(self, tape: Tape) -> None:
        """Add a step to the run of consecutive ones."""
        if self.wants(tape.step) and tape.complete and size_of(tape) <= MAX_WINDOW_BYTES:
            self._links.check(tape, self._window)
            self._window.append(detached(tape))
            self._links.note(tape)

    def tapes(self) -> tuple[Tape, ...]:
        """Return the kept steps, those that went wrong first."""
        return (*self._sick, *self._sound)

    def beyond_formats(self) -> tuple[Tape, ...]:
        """Return the kept steps that are not finite in the reference either."""
        return tuple(self._beyond)

    def window(self) -> tuple[Tape, ...]:
        """Return the consecutive steps."""
        return tuple(self._window)


def _off_by_rounding(trace: ReplayTrace) -> float:
    facts = trace.precision
    if facts is None or not (facts.amplified or any(i.collisions for i in facts.integers)):
        return 0.0
    return next((s.error or 0.0 for s in trace.sinks if s.sink == "gradients"), 0.0)


def size_of(tape: Tape) -> int:
    """Return the bytes that a copy of a step takes."""
    return sum(leaf.data.numel() for leaf in tape.leaves.values())


def detached(tape: Tape) -> Tape:
    """Return the step with copies of what the script goes on to change."""
    leaves = {n: _copied(leaf) for n, leaf in tape.leaves.items()}
    return replace(tape, leaves=leaves, final={})


def _copied(leaf: Leaf) -> Leaf:
    """Copy what the script may write to; a mapped file is the tape's own."""
    if leaf.on_disk:
        return leaf
    return replace(leaf, data=leaf.data.clone())
