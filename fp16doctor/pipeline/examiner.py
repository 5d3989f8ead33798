"""Which tapes of a run are examined, and when; what is kept of them.

Must not know what an examination means (``diagnose``) or how a run is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace

from fp16doctor.errors import ReplayError
from fp16doctor.pipeline.bundling import BundleKeeper
from fp16doctor.pipeline.step_before import StepBefore, loss_after_update
from fp16doctor.prescribe.shelf import TapeShelf
from fp16doctor.record.births import Birth, births, given, spoils
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.tape_builder import build_refused, build_tape
from fp16doctor.replay.evaluations import first_evaluation
from fp16doctor.replay.exact_sums import with_shares
from fp16doctor.replay.examine import examine
from fp16doctor.replay.shorter_update import shorter_update
from fp16doctor.replay.update_ledger import UpdateLedger
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import FAR_OFF
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import Event, ReplayTrace

MAX_EXAMINED = 12  # flagged steps examined against a reference
MAX_WARMUP_EXAMINED = 2  # of which for gradients that overflow while the scaler settles
# The same birth is looked at again in ever wider strides: what was warm-up may have become a
# collapse.
AGAIN_FACTOR, AGAIN_STEPS = 4, 50
# Steps examined although nothing was flagged: silent faults. Four in a row tell a rounding error
# that lasts from one that averages out, later ones follow the run in ever wider strides. The last
# one is examined as well: what has stopped by then stays behind.
SAMPLED_STEPS = frozenset(
    (0, 1, 2, 3, 4, 9, 19, 49, 99, 149, 199, 299, 499, 699, 999, 1499, 1999, 2999, 4999, 6999)
)
MAX_SHARED = 3  # steps on which it is measured what lost digits do to the gradient
SAMPLING_SHARE = 0.2  # of the run's time so far may go into them
SAMPLING_ALLOWANCE = 5.0  # seconds that may go into them in any case


class Examiner:
    """Traces, kept tapes and summed updates of one run."""

    def __init__(
        self,
        keeper: BundleKeeper | None = None,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self.keeper = keeper  # of steps for a bundle
        self._told = told  # of a step that is examined now, and how many were before
        self.traces: list[ReplayTrace] = []
        self.ledger = UpdateLedger()
        self.shelf = TapeShelf()
        self._before = StepBefore()
        self.seconds = 0.0  # spent here
        self._known: dict[Hashable, int] = {}  # birth -> step at which it was last examined
        self._warmups = 0
        self._flagged = 0
        self._shared = 0
        self._began = time.perf_counter()

    def begin(self) -> None:
        """The run begins now."""
        self._began = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def take(self, recorder: Recorder, roll: Roll) -> bool:
        """Examine a tape if it shows something new, or is due; True if something was flagged."""
        if not roll.ops:  # not taped
            return False
        led_astray = self._look_before(recorder, roll)
        suspects = births(roll) or given(roll) or spoils(roll)
        fresh = [b for b in suspects if self._is_fresh(b, roll.step)]
        flagged = bool(fresh) and self._worth(recorder, fresh)
        due = flagged or led_astray or self._due(recorder, roll)
        wanted = recorder.steps.attempted and self.shelf.wants(roll.step)
        tape = build_tape(recorder, roll) if due or wanted else None
        if recorder.steps.attempted:
            self._before.keep(recorder, roll, tape)
        if tape is None:
            return False
        whole = True
        if due:
            self._known.update((b.key, roll.step) for b in suspects)
            whole = self._look_at(recorder, tape) is tape
        if recorder.steps.attempted and whole:
            self.shelf.follow(tape)
        return flagged

    def _look_before(self, recorder: Recorder, roll: Roll) -> bool:
        """Examine the step whose update let the loss jump; True if there is one."""
        before = self._before.at_jump(recorder, roll.step) if recorder.steps.attempted else None
        if before is None:
            return False
        if all(t.step != before.step for t in self.traces):
            self._look_at(recorder, before)
        again, shorter = loss_after_update(before), shorter_update(before)
        self.traces = [
            replace(t, loss_after_update=again, shorter=shorter) if t.step == before.step else t
            for t in self.traces
        ]
        self.shelf.start_at(before)
        return True

    def keep_refused(self, recorder: Recorder, roll: Roll) -> None:
        """Keep the way to a call that raised, if the run ends with it."""
        raised = recorder.last_raise
        if raised is not None and recorder.stopping:
            self.shelf.refuse(build_refused(recorder, roll, raised))

    def _is_fresh(self, birth: Birth, step: int) -> bool:
        last = self._known.get(birth.key)
        return last is None or step >= AGAIN_FACTOR * last + AGAIN_STEPS

    def _look_at(self, recorder: Recorder, tape: Tape) -> Tape:
        """Compare a step with the reference; returns what was looked at."""
        if self._told is not None:
            self._told(tape.step, len(self.traces))
        try:
            tape, trace = self._examined(tape)
        except ReplayError as error:
            recorder.caution(error.slug, f"step {tape.step}: {error.message}")
            return tape
        info = next((s for s in reversed(recorder.book.steps) if s.step == tape.step), None)
        if info is not None:
            trace = replace(trace, loss_scale=info.loss_scale, found_inf=info.found_inf)
        trace = self._with_shares(tape, trace)
        self.traces.append(trace)
        self.shelf.offer(tape, trace)
        if self.keeper is not None:
            self.keeper.offer(tape, trace)
        return tape

    def _examined(self, tape: Tape) -> tuple[Tape, ReplayTrace]:
        """Of a closure's evaluations look at the first alone where fp32 is not finite behind it."""
        trace = examine(tape, with_reference=True, ledger=self.ledger)
        part = first_evaluation(tape) if any(s.nonfinite_reference for s in trace.sinks) else None
        if part is None:
            return tape, trace
        events = _up_to_weights(trace.events, len(part.ops))
        return part, replace(examine(part, with_reference=True), events=events)

    def _with_shares(self, tape: Tape, trace: ReplayTrace) -> ReplayTrace:
        """Measure what sums that lost their digits do to a gradient that is far off."""
        facts = trace.precision
        off = next((s.error for s in trace.sinks if s.sink == "gradients"), None) or 0.0
        if facts is None or not facts.amplified or off < FAR_OFF or self._shared >= MAX_SHARED:
            return trace
        self._shared += 1
        amplified = with_shares(tape, facts.amplified)
        return replace(trace, precision=replace(facts, amplified=amplified))

    def _due(self, recorder: Recorder, roll: Roll) -> bool:
        """Tell whether a step without a flag is one of the sampled ones, and there is time."""
        if not recorder.steps.attempted:
            return False
        if roll.step not in SAMPLED_STEPS and not recorder.stopping:
            return False
        if not self.traces:
            return True
        return self.seconds < SAMPLING_ALLOWANCE + SAMPLING_SHARE * self.elapsed

    def _worth(self, recorder: Recorder, fresh: list[Birth]) -> bool:
        """Bound the number of examinations; a settling scaler gets few of them."""
        if self._flagged >= MAX_EXAMINED:
            recorder.caution(
                "examinations-used-up", f"{MAX_EXAMINED} steps were examined; later ones were not"
            )
            return False
        if all(b.phase is Phase.BACKWARD and b.key not in self._known for b in fresh):
            self._warmups += 1
            if self._warmups > MAX_WARMUP_EXAMINED:
                return False
        self._flagged += 1
        return True


def _up_to_weights(events: tuple[Event, ...], end: int) -> tuple[Event, ...]:
    """Return the events in front of ``end``, and of later ones the first that reached weights.

    What comes behind it happened to weights that were lost.
    """
    kept = [e for e in events if e.site.index < end]
    if not any("parameters" in e.reaches for e in kept):
        kept += [e for e in events if e.site.index >= end and "parameters" in e.reaches][:1]
    return tuple(kept)
