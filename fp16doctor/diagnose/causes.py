"""Which events of the examined steps are causes, which are consequences, and a cause as a finding.

Must not know the words of any rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from fp16doctor.diagnose.families import rule_of
from fp16doctor.diagnose.limits import fits
from fp16doctor.diagnose.measures import (
    ended_the_run,
    handled_by_scaler,
    has_impact,
    is_scaled_gradient,
    severity_of,
    silent_sink,
)
from fp16doctor.diagnose.poisoned import harmful
from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.trace import Event, EventKind, ReplayTrace, SinkState

# Below this relative difference an op got the inputs that the reference run gave it.
_SAME_INPUTS = 0.1


@dataclass(frozen=True, slots=True)
class Cause:
    """An event that no earlier event explains."""

    trace: ReplayTrace
    event: Event
    severity: Severity
    handled: bool  # a GradScaler, or the script's own check, saw it and skipped the step
    ended: bool  # the script ended before a sink could receive it
    folded: int = 0  # later events that it explains

    @property
    def heirs(self) -> int:
        """Later ops that inherit the non-finite value, and later events that it explains."""
        return self.event.later_nonfinite + self.folded

    @property
    def first_nan(self) -> OpSite | None:
        """The later op that made NaN of the infinity."""
        site = self.event.first_nan
        return site if site is not None and site.index != self.event.site.index else None

    @property
    def silent(self) -> SinkState | None:
        """The finite but wrong sink, where a later op made the infinity finite."""
        return silent_sink(self.trace, self.event)

    @property
    def fails_anyway(self) -> int:
        """Elements of the sinks it reaches that are non-finite in the reference run as well."""
        sinks = (s for s in self.trace.sinks if s.sink in self.event.reaches)
        return max((s.nonfinite_reference for s in sinks), default=0)


@dataclass(frozen=True, slots=True)
class Words:
    """The sentences of one finding."""

    what: str
    cause: str
    advice: str = ""


def causes(seen: Observations, rule_name: str | None = None) -> tuple[Cause, ...]:
    """Causes in order of step and tape index; only those of one rule where it is named.

    Once non-finite parameters were left behind by a step, later steps tell nothing new: their
    events are counted under the event that did it. Where the step was given an inf or NaN and took
    harm from it, that is the cause (rule nonfinite-input), and no event of it is one.
    """
    found: list[Cause] = []
    poisoned: int | None = None
    for trace in sorted(seen.traces, key=lambda t: t.step):
        if poisoned is not None:
            found[poisoned] = _fold_all(found[poisoned], trace)
            continue
        given = harmful(seen, trace)
        if given is not None and "parameters" in given.reaches:
            break
        if given is not None:
            continue
        found.extend(_causes_of_step(seen, trace))
        poisoned = next((i for i, c in enumerate(found) if "parameters" in c.event.reaches), None)
    wanted = (c for c in found if rule_name in (None, rule_of(c.event)))
    return tuple(wanted)


def _fold_all(cause: Cause, trace: ReplayTrace) -> Cause:
    more = sum(not event.harmless for event in trace.events)
    return dataclasses.replace(cause, folded=cause.folded + more)


def _causes_of_step(seen: Observations, trace: ReplayTrace) -> Iterator[Cause]:
    root: Event | None = None
    kept: list[Event] = []
    folded = 0
    for event in _joined(trace.events):
        if event.harmless:
            continue
        if root is not None and _explains(trace, root, event):
            folded += 1
            continue
        kept.append(event)
        if root is None and has_impact(seen, trace, event):
            root = event
    for event in kept:
        yield _cause(seen, trace, event, folded if event is root else 0)


def _joined(events: tuple[Event, ...]) -> list[Event]:
    """Events in tape order; those that one earlier rounding caused become the first of them.

    A probability flushed to 0 makes log(0) in the loss and 0/0 in its backward: one cause.
    """
    joined: list[Event] = []
    places: dict[int, int] = {}
    for event in sorted(events, key=lambda e: e.site.index):
        reason = event.cause_site
        known = places.get(reason.index) if reason is not None else None
        if known is not None:
            joined[known] = _with_heir(joined[known], event)
            continue
        if reason is not None:
            places[reason.index] = len(joined)
        joined.append(event)
    return joined


def _with_heir(event: Event, heir: Event) -> Event:
    reaches = (*event.reaches, *(r for r in heir.reaches if r not in event.reaches))
    later = event.later_nonfinite + 1 + heir.later_nonfinite
    nan = event.first_nan or heir.first_nan
    return dataclasses.replace(event, reaches=reaches, later_nonfinite=later, first_nan=nan)


def _cause(seen: Observations, trace: ReplayTrace, event: Event, folded: int) -> Cause:
    return Cause(
        trace=trace,
        event=event,
        severity=severity_of(seen, trace, event),
        handled=handled_by_scaler(seen, trace, event),
        ended=ended_the_run(seen, trace, event),
        folded=folded,
    )


def _explains(trace: ReplayTrace, root: Event, later: Event) -> bool:
    """Whether ``later`` would not have happened without ``root``, an earlier event with impact.

    It would not where the reference run's value fits the format, unless the op got the same inputs
    there, or another rounding, before ``root``, caused it. Gradients that are too large by the
    loss scale alone have one cause, the scale. After a fault of logic the
    reference run is not to be trusted, and an op that could not be replayed has none.
    """
    if EventKind.LOGIC is root.kind or later.kind is EventKind.UNKNOWN:
        return True
    if is_scaled_gradient(trace, root) and is_scaled_gradient(trace, later):
        return True
    if not fits(later.reference, later.format):
        return False
    if later.kind is EventKind.INTERNAL_OVERFLOW and _same_inputs(later):
        return False
    reason, own = later.cause_site, root.cause_site
    if reason is None or reason.index >= root.site.index:
        return True
    return own is not None and own.index == reason.index


def _same_inputs(event: Event) -> bool:
    if event.exact is None or event.reference is None:
        return False
    return math.isclose(event.exact, event.reference, rel_tol=_SAME_INPUTS)


def event_behind_skips(seen: Observations) -> Event | None:
    """The first event that a sink received, in the last examined attempt that was skipped."""
    for trace in sorted(seen.traces, key=lambda t: -t.step):
        step = seen.step(trace.step)
        if step is None or not step.skipped:
            continue
        born = (e for e in trace.events if e.reaches and not e.harmless)
        first = min(born, key=lambda e: e.site.index, default=None)
        if first is not None:
            return first
    return None


def as_finding(
    cause: Cause, code: str, fault: Fault, words: Words, evidence: tuple[Evidence, ...] = ()
) -> Finding:
    """A cause as the finding of one rule; counts and sinks are added to its evidence."""
    event = cause.event
    chain = (event.site,) if cause.first_nan is None else (event.site, cause.first_nan)
    return Finding(
        code=code,
        name=rule_of(event),
        severity=cause.severity,
        fault=fault,
        what=words.what,
        cause=words.cause,
        site=event.site,
        cause_site=event.cause_site,
        evidence=(*evidence, *_common_evidence(cause)),
        consequences=cause.heirs,
        chain=chain,
        reaches=event.reaches,
        repeats=event.repeats,
        advice=words.advice,
        left_out=event.left and not cause.ended,
    )


def _common_evidence(cause: Cause) -> Iterator[Evidence]:
    event, state = cause.event, cause.silent
    born = event.n_inf + event.n_nan
    yield Evidence(
        "non-finite elements",
        measured=float(born),
        source="recorded",
        format=event.format,
        count=born,
        total=event.total,
    )
    if state is not None and state.error is not None:
        yield Evidence(f"{state.sink} error", state.error, f"replayed:{cause.trace.reference}")
