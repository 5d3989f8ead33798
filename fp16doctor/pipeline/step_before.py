"""The step in front of the one in which the loss left its level, kept until then.

A loss that jumps was led astray by the update before it: that step shows whether fp32 makes the
same one. Must not know how a step is examined.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import isfinite

from fp16doctor.diagnose.levels import leaves_level
from fp16doctor.prescribe.shelf import MAX_WINDOW_BYTES, detached, size_of
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.tape_builder import build_tape
from fp16doctor.replay.trajectory import follow
from fp16doctor.schema.policy import FP32
from fp16doctor.schema.tape import Tape

SHARE = 0.05  # of the run's time so far may go into keeping steps that turn out to be no use
ALLOWANCE = 1.0  # seconds that may go into it in any case


@dataclass(slots=True)
class StepBefore:
    """The last closed step of a run whose loss keeps its level."""

    tape: Tape | None = None
    seconds: float = 0.0
    _began: float = field(default_factory=time.perf_counter)
    _level: list[float] = field(default_factory=list)  # the losses so far
    _jumped: bool = False

    def at_jump(self, recorder: Recorder, step: int) -> Tape | None:
        """Return the step in front of ``step``, where the loss jumps there for the first time."""
        info = recorder.book.steps[-1] if recorder.book.steps else None
        loss = info.loss if info is not None and info.step == step else None
        if self._jumped or loss is None or not isfinite(loss):
            return None
        self._jumped = leaves_level(loss, self._level)
        self._level.append(loss)
        before, self.tape = self.tape, None
        return before if self._jumped and before is not None and before.step == step - 1 else None

    def keep(self, recorder: Recorder, roll: Roll, tape: Tape | None) -> None:
        """Keep a step that was just closed; ``tape``: where it was built already."""
        if self._jumped or not roll.ops or not self._has_time():
            self.tape = None
            return
        began = time.perf_counter()
        tape = build_tape(recorder, roll) if tape is None else tape
        fits = tape.complete and size_of(tape) <= MAX_WINDOW_BYTES
        self.tape = detached(tape) if fits else None
        self.seconds += time.perf_counter() - began

    def _has_time(self) -> bool:
        elapsed = time.perf_counter() - self._began
        return self.seconds < ALLOWANCE + SHARE * elapsed


def loss_after_update(tape: Tape) -> float | None:
    """Return the loss of the step's own batch once its update is made, all of it in fp32.

    The loss scale is divided out. None where the step cannot be played twice.
    """
    losses = follow((tape, tape), FP32).losses
    return losses[1] if len(losses) == 2 else None
