"""Keeps the rolling tape within bounds: its length, its copies, its inputs, what is no training.

Must not know how records are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp16doctor.record.spill import spill
from fp16doctor.record.weight import weigh

if TYPE_CHECKING:
    from fp16doctor.record.recorder import Recorder

MAX_OPS = 150_000  # records of one step; about 1 KiB each
MAX_IDLE_OPS = 20_000  # records kept while no backward has run: evaluation, set-up
MAX_IDLE_CALLS = 4  # models called without grad before a step, whose batches are kept
COPY_CAP = 512 * 2**20  # bytes of copies made before writes, per step

# Bytes of inputs that the script has let go of. In a step they are what the tape is replayed from,
# and the next step takes their place; a loop over a data set before training has no such end.
INPUT_CAP = 2**30
SPILL_ABOVE = 256 * 2**20  # bytes of them in memory; more go to a temporary file
IDLE_CAP = 128 * 2**20
WEIGH_EVERY = 64 * 2**20  # bytes of new inputs: weighing looks at every one of the roll's


class Bounds:
    """Limits of the open step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.truncated = False  # the rest of the open step is not recorded
        self.handed_over = False  # the open step, before its leaves were overwritten
        self.too_heavy = False  # nothing of the open step may be carried into the next
        self.last_call = 0  # first op after the last call of a root
        self._idle_calls = 0

    def begin(self) -> None:
        """Open a new step."""
        self.truncated = self.handed_over = self.too_heavy = False
        self.last_call = self._idle_calls = 0

    def idle_too_long(self) -> bool:
        """Tell, at the call of a root, whether a loop runs that does not train: evaluation."""
        recorder = self._recorder
        if recorder.book.marks.backward_ends:
            return False
        if self.too_heavy:
            return True
        self._idle_calls += not recorder.steps.running
        if self._idle_calls > MAX_IDLE_CALLS or len(recorder.roll.ops) > MAX_IDLE_OPS:
            return True
        self.last_call = len(recorder.roll.ops)
        return False

    def too_long_outside_steps(self) -> bool:
        """Tell whether what was recorded outside of steps is too long; else end long steps."""
        recorder = self._recorder
        if not recorder.steps.running or recorder.steps.may_begin:
            return True
        if len(recorder.roll.ops) >= MAX_OPS and not self.truncated:
            self._truncate("step-too-long", f"a step has more than {MAX_OPS} ops")
        return False

    def too_heavy_outside_steps(self) -> bool:
        """Tell whether inputs kept outside of steps are too large; else end steps with such."""
        recorder = self._recorder
        running, roll = recorder.steps.running, recorder.roll
        if self.truncated:
            return False
        weight = weigh(roll)
        if running and weight > SPILL_ABOVE:
            spill(roll)
            weight = weigh(roll)
        if weight + roll.on_disk <= (INPUT_CAP if running else IDLE_CAP):
            return False
        self.too_heavy = True
        if not running or recorder.steps.may_begin:
            return True
        self._cut("inputs-too-large", f"a step is done with over {INPUT_CAP >> 20} MiB of inputs")
        return False

    def copies_ran_out(self) -> None:
        """Leaves too large to copy are about to be overwritten."""
        self._cut("copies-too-large", f"over {COPY_CAP >> 20} MiB are overwritten in a step")

    def _cut(self, slug: str, message: str) -> None:
        """Have the step examined at once: what follows may overwrite its leaves unseen."""
        self._truncate(slug, message)
        self.handed_over = True
        with self._recorder.quiet():
            self._recorder.roll.read_flags([])
            self._recorder.hand_over()

    def _truncate(self, slug: str, message: str) -> None:
        self.truncated = True
        step = self._recorder.roll.step
        self._recorder.caution(slug, f"{message}; the rest of step {step} was not recorded")
