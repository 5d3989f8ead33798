"""Impact, handling by the scaler and severity of one event: pure functions of the facts.

Must not know rules or words.
"""

from __future__ import annotations

import math
import re

from fp16doctor.diagnose.families import GRADIENT_PHASES, OVERFLOWS, is_mask_fill
from fp16doctor.diagnose.limits import fits
from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.recording import OutcomeKind, StepInfo
from fp16doctor.schema.trace import Event, EventKind, ReplayTrace, SinkState

# A loss or gradient this far from the reference, relative to it, was changed, not rounded.
SILENT_ERROR = 0.1
# Where an infinity that became finite shows, by the phase it was born in.
_SINKS_AFTER = {
    Phase.SCRIPT: ("loss", "gradients"),
    Phase.FORWARD: ("loss", "gradients"),
    Phase.LOSS: ("loss", "gradients"),
    Phase.BACKWARD: ("gradients",),
    Phase.OPTIMIZER: ("applied gradients",),
}
# What a scaler is there to catch; parameters and buffers it cannot restore.
_CAUGHT_BY_SCALER = frozenset({"loss", "gradients"})
_BEFORE_BACKWARD = frozenset({Phase.FORWARD, Phase.LOSS})
# How scripts stop themselves when a value is not finite.
_CHECKS = frozenset({"AssertionError", "FloatingPointError"})
_NON_FINITE = re.compile(r"\b(nan|inf|infinity|infinite|(non-?)?finite|diverged?)\b", re.IGNORECASE)
# Forward infinities are rare up to this many skipped attempts and this share of all attempts ...
RARE_SKIPS = 2
RARE_SHARE = 0.05
# ... a run that ends in more than this many skipped attempts does not recover ...
LOST_ATTEMPTS = 3
# ... and a scale is still falling when more than this share of the later half is skipped.
HALVING_SHARE = 0.05
# A scale of the script's own grows back sooner than GradScaler's: this share is still its search.
OFTEN_SKIPPED = 0.25


def sink(trace: ReplayTrace, name: str) -> SinkState | None:
    """State of one sink at the end of the replay."""
    return next((s for s in trace.sinks if s.sink == name), None)


def silent_sink(trace: ReplayTrace, event: Event) -> SinkState | None:
    """The finite but wrong sink of an event whose infinity a later op made finite.

    A sink that another event reaches says nothing about this one; what a mask fill leaves behind
    is what the mask meant. The loss is over before backward begins.
    """
    if event.reaches or event.in_tail or is_mask_fill(event) or event.harmless:
        return None
    names = _SINKS_AFTER[event.site.phase]
    reached = {name for other in trace.events for name in other.reaches}
    states = (sink(trace, name) for name in names if name not in reached)
    return next((s for s in states if s is not None and _is_wrong(s)), None)


def _is_wrong(state: SinkState) -> bool:
    return state.error is not None and math.isfinite(state.error) and state.error > SILENT_ERROR


def has_impact(seen: Observations, trace: ReplayTrace, event: Event) -> bool:
    """Whether loss, gradients, parameters or buffers are non-finite or wrong because of it.

    So it counts where the run ended before one of them could receive it.
    """
    reached = bool(event.reaches) or silent_sink(trace, event) is not None
    return reached or ended_the_run(seen, trace, event)


def ended_the_run(seen: Observations, trace: ReplayTrace, event: Event) -> bool:
    """Whether the script ended in mid-step after NaN was made, as its own NaN check does.

    An infinity alone may be a mask that the rest of the step would have used up: it counts only
    where the exception speaks of it, or is a failed assertion.
    """
    unfinished = seen.final and seen.step(trace.step) is None and not event.in_tail
    if not unfinished or event.reaches or event.site.phase not in _BEFORE_BACKWARD:
        return False
    if event.n_nan or event.first_nan is not None:
        return True
    outcome = seen.recording.run.outcome
    if outcome.kind is not OutcomeKind.RAISED or is_mask_fill(event):
        return False
    checked = outcome.exception in _CHECKS or _NON_FINITE.search(outcome.message or "")
    return bool(event.later_nonfinite and checked)


def handled_by_scaler(seen: Observations, trace: ReplayTrace, event: Event) -> bool:
    """Whether the step was skipped because of it, so that nothing but the step was lost.

    By GradScaler, or by the script's own check.
    """
    step = seen.step(trace.step)
    if skipped_by_script(seen, trace):
        return set(event.reaches) <= _CAUGHT_BY_SCALER
    found = trace.found_inf if trace.found_inf is not None else step and step.found_inf
    skipped = step is None or step.skipped  # None: the attempt is not over yet
    return bool(found) and skipped and set(event.reaches) <= _CAUGHT_BY_SCALER


def skipped_by_script(seen: Observations, trace: ReplayTrace) -> bool:
    """Whether the script itself left the step out, without a GradScaler."""
    step = seen.step(trace.step)
    return step is not None and step.skipped and step.found_inf is None


def severity_of(seen: Observations, trace: ReplayTrace, event: Event) -> Severity:
    """How much an event matters.

    * without impact: note
    * an op that could not be replayed: warning, since its cause is not known
    * not handled by a scaler: error
    * handled, overflow of a scaled gradient: note while the scale may still settle, error when the
      run ended without another successful step, or when the scale keeps falling after warm-up
    * handled, anything else: no scale cures it, so a note only while it is rare
    """
    if not has_impact(seen, trace, event):
        return Severity.NOTE
    if event.kind is EventKind.UNKNOWN:
        return Severity.WARNING
    if not handled_by_scaler(seen, trace, event):
        return Severity.ERROR
    if event.kind in OVERFLOWS and event.site.phase in GRADIENT_PHASES:
        return _scaled_gradient_severity(seen, trace.step)
    return _skipped_forward_severity(seen, trace.step)


def _scaled_gradient_severity(seen: Observations, step: int) -> Severity:
    if scale_keeps_falling(seen, step) or _often_skipped_by_script(seen):
        return Severity.ERROR
    later = seen.steps_after(step)
    if not seen.final or any(not s.skipped for s in later):
        return Severity.NOTE
    return Severity.ERROR if len(later) >= LOST_ATTEMPTS else Severity.NOTE


def _often_skipped_by_script(seen: Observations) -> bool:
    """Whether the script's own check still leaves out many steps in the later half of the run."""
    half = seen.recording.steps[len(seen.recording.steps) // 2 :]
    skipped = sum(s.skipped and s.found_inf is None for s in half)
    return skipped >= LOST_ATTEMPTS and skipped > OFTEN_SKIPPED * len(half)


def _skipped_forward_severity(seen: Observations, step: int) -> Severity:
    attempts = seen.recording.steps
    skipped = sum(s.skipped for s in attempts)
    if not seen.final and skipped < LOST_ATTEMPTS:
        return Severity.NOTE
    recovers = any(not s.skipped for s in seen.steps_after(step))
    rare = skipped <= RARE_SKIPS and skipped <= RARE_SHARE * len(attempts)
    return Severity.NOTE if rare and recovers else Severity.ERROR


def scale_keeps_falling(seen: Observations, step: int) -> bool:
    """Whether ``step`` is one of many skips after warm-up, with the scale lower at the end.

    Warm-up is everything before the first successful attempt. Looked at is the later half of the
    attempts: more than one skip in twenty there, at least two, and a scale that ends below where
    that half began.
    """
    attempts = seen.scaler_steps()
    first_success = next((s.step for s in attempts if not s.skipped), None)
    if first_success is None or step < first_success:
        return False
    half = attempts[len(attempts) // 2 :]
    skipped = sum(s.skipped for s in half if s.step > first_success)
    return skipped >= 2 and skipped > HALVING_SHARE * len(half) and _falls(half)


def _falls(steps: tuple[StepInfo, ...]) -> bool:
    first, last = steps[0].loss_scale, steps[-1].next_loss_scale
    last = last if last is not None else steps[-1].loss_scale
    return first is not None and last is not None and last < first


def scales_of(attempts: tuple[StepInfo, ...]) -> list[float]:
    """Scales of all attempts in order, with the one after the last."""
    scales = [s.loss_scale for s in attempts] + [s.next_loss_scale for s in attempts[-1:]]
    return [scale for scale in scales if scale is not None]


def trailing_skips(attempts: tuple[StepInfo, ...]) -> int:
    """How many attempts at the end were all skipped."""
    last_success = max((i for i, s in enumerate(attempts) if not s.skipped), default=-1)
    return len(attempts) - 1 - last_success


def magnitude(event: Event) -> float | None:
    """Largest finite magnitude known of the exact result.

    The larger of the value at the event's element and the reference run's largest one.
    """
    known = [abs(v) for v in (event.exact, event.reference_amax) if v is not None]
    finite = [v for v in known if math.isfinite(v)]
    return max(finite, default=None)


def is_scaled_gradient(trace: ReplayTrace, event: Event) -> bool:
    """Whether it is a gradient that overflows with GradScaler's scale and would fit without it."""
    if event.kind is not EventKind.OVERFLOW or event.site.phase not in GRADIENT_PHASES:
        return False
    size = magnitude(event)
    if size is None or not trace.loss_scale or not trace.loss_scale > 1:
        return False
    return fits(size / trace.loss_scale, event.format)
