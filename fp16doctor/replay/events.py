"""Births as events: what each is in the light of the whole step, and which belong together.

Must not know rules; ``diagnose`` finds causes and words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay.births import BirthFacts
from fp16doctor.replay.lockstep import LockstepResult
from fp16doctor.replay.sinks import SinkObserver
from fp16doctor.replay.stored_pole import stored_pole
from fp16doctor.replay.taint import Spread, Tracer, left_out
from fp16doctor.replay.upstream import find_cause
from fp16doctor.schema.location import Phase
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape
from fp16doctor.schema.trace import Event, EventKind, SinkState

MAX_CAUSES = 3  # boundary births of one step whose upstream is searched
_TRAINING = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD})
_SINK_ORDER = ["loss", "gradients", "parameters", "buffers"]


class EventMaker:
    """Turns the births of one lockstep run into events."""

    def __init__(
        self,
        tape: Tape,
        policy: PrecisionPolicy,
        result: LockstepResult,
        sinks: SinkObserver,
        states: tuple[SinkState, ...],
    ) -> None:
        self._tape, self._policy, self._births = tape, policy, result.births
        self._tracer = Tracer(tape, result.codes, sinks.bad)
        self._sick = {s.sink for s in states if s.nonfinite_reference}
        if self._tracer.cut_at is not None:
            self._sick.add("gradients")  # no parameter's gradient was made that could be measured

    @property
    def tracer(self) -> Tracer:
        """Follows values along the tape."""
        return self._tracer

    def events(self) -> Iterator[Event]:
        """Yield events in tape order; a NaN made of another birth's inf is part of its chain."""
        absorbed: set[int] = set()
        causes = 0
        for birth in self._births:
            if birth.call.index in absorbed:
                continue
            path = self._path(birth)
            if not self._harmless(birth):
                absorbed |= path.ops & {b.call.index for b in self._births if b.nan_from_inf}
            event = self._event(birth, path)
            if _lies_upstream(event) and causes < MAX_CAUSES:
                causes += 1
                event = self._with_cause(event, birth)
            yield event

    def _path(self, birth: BirthFacts) -> Spread:
        """Follow a birth; where it alone does no harm, what others make of it is theirs."""
        harmless = self._harmless(birth)
        stops = {b.call.index for b in self._births if harmless or not b.inherits}
        return self._tracer.spread(birth, stops - {birth.call.index})

    def _harmless(self, birth: BirthFacts) -> bool:
        """An inf on purpose, or one that the reference run has and takes no harm from."""
        shared = birth.kind is EventKind.BOUNDARY and birth.shared
        return birth.constant_source or (shared and not self._sick)

    def _event(self, birth: BirthFacts, path: Spread) -> Event:
        attempt, kind = self._tape.attempt, self._kind(birth, path)
        stored = stored_pole(self._tape, birth) if kind is EventKind.LOGIC else None
        return Event(
            kind=kind,
            site=replace(
                birth.call.site,
                element=birth.element,
                sample=self._sample(birth),
            ),
            format=birth.format,
            n_inf=birth.n_inf,
            n_nan=birth.n_nan,
            total=birth.total,
            exact=birth.exact,
            reference=birth.reference,
            reference_amax=birth.reference_amax,
            operands=birth.operands,
            integer_operand=birth.integer_operand,
            constant=birth.constant,
            later_nonfinite=len(path.ops),
            first_nan=path.first_nan,
            reaches=tuple(sorted(path.reaches, key=_SINK_ORDER.index)),
            left=not path.reaches and left_out(self._ops(birth, path)),
            in_tail=attempt is not None and birth.call.index >= attempt,
            cause_site=None if stored is None else stored.site,
            stored=stored,
            healed_by=None if path.reaches else path.healer,
        )

    def _ops(self, birth: BirthFacts, path: Spread) -> list[OpCall]:
        return [self._tape.ops[i] for i in sorted({birth.call.index, *path.ops})]

    def _sample(self, birth: BirthFacts) -> int | None:
        if birth.call.site.phase is Phase.OPTIMIZER:  # its tensors have no sample in them
            return None
        return sample_of(birth.element, birth.ref.shape, self._tape.batch)

    def _kind(self, birth: BirthFacts, path: Spread) -> EventKind:
        if birth.kind is not EventKind.BOUNDARY or not birth.shared:
            return birth.kind
        if not path.reaches:
            return EventKind.HEALED if self._is_healed(birth, path) else EventKind.INTENDED
        return EventKind.LOGIC if self._sick & path.reaches else EventKind.BOUNDARY

    def _is_healed(self, birth: BirthFacts, path: Spread) -> bool:
        """Tell it from a mask, which is −inf before backward, and from numbers for the log."""
        phase, attempt = birth.call.site.phase, self._tape.attempt
        if birth.constant_source or path.healer is None or phase not in _TRAINING:
            return False
        if attempt is not None and birth.call.index >= attempt:
            return False
        is_mask = not birth.n_nan and birth.exact is not None and birth.exact < 0
        return phase is Phase.BACKWARD or not (is_mask or left_out(self._ops(birth, path)))

    def _with_cause(self, event: Event, birth: BirthFacts) -> Event:
        cause = find_cause(self._tape, birth, self._policy)
        if cause is None:
            return event
        return replace(
            event, cause_site=cause.site, cause_as_run=cause.as_run, cause_exact=cause.exact
        )


def sample_of(element: tuple[int, ...], shape: tuple[int, ...], batch: int | None) -> int | None:
    """Return the sample of the batch that an element belongs to.

    The leading size is the batch, or a multiple of it where samples were flattened into it (a
    sequence's tokens, an image's windows); None where it is neither.
    """
    if not element or not batch or batch < 2 or shape[0] % batch:
        return None
    return element[0] // (shape[0] // batch)


def _lies_upstream(event: Event) -> bool:
    """An earlier rounding is behind it: the reference run has a value here that the format holds.

    A probability rounded to 1 makes the gradient of a cross entropy overflow; the op that
    overflows is not the one to change.
    """
    if event.kind is EventKind.BOUNDARY:
        return True
    if event.kind is not EventKind.OVERFLOW or event.reference is None:
        return False
    return abs(event.reference) < get_format(event.format).overflow_threshold
