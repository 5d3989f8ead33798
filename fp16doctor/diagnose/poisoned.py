"""Whether what a step was given, an inf or NaN from outside, did harm, and nothing else did.

Must not know the words of any rule.
"""

from __future__ import annotations

from fp16doctor.diagnose.rule import Observations
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import Event, Poison, ReplayTrace

_BEFORE_BACKWARD = frozenset({Phase.FORWARD, Phase.LOSS, Phase.SCRIPT})
_SINKS = ("loss", "gradients")
_STATE = frozenset({"parameters", "buffers"})


def harmful(seen: Observations, trace: ReplayTrace) -> Poison | None:
    """The first poison that loss or gradients of the step are non-finite from."""
    return next((p for p in trace.poisons if _harms(seen, trace, p)), None)


def is_from_outside(seen: Observations, trace: ReplayTrace, poison: Poison) -> bool:
    """Whether the step before was seen and left no NaN in a parameter or buffer."""
    if not (poison.is_parameter or poison.is_buffer) or trace.step == 0:
        return True
    before = seen.step(trace.step - 1)
    if before is None or not before.n_ops:
        return False
    return not before.n_nonfinite_ops or seen.trace(before.step) is not None


def _left_unseen(seen: Observations, trace: ReplayTrace, poison: Poison) -> bool:
    """Whether it is a parameter or buffer that a step made so whose ops were not recorded."""
    if not (poison.is_parameter or poison.is_buffer) or trace.step == 0:
        return False
    before = seen.step(trace.step - 1)
    return before is None or not before.n_ops


def leaves_something(trace: ReplayTrace) -> bool:
    """Whether a birth reached what the next step reads: it is given what this one made."""
    return any(_STATE & set(e.reaches) for e in _born(trace))


def _harms(seen: Observations, trace: ReplayTrace, poison: Poison) -> bool:
    """A birth in front of what it reaches explains that just as well, and goes first.

    Unless it lies behind a parameter that came as inf from a step that nobody saw: inf - inf and
    0 * inf are births as well, and not to blame.
    """
    reached = [s for s in _SINKS if s in poison.reaches and _is_lost(trace, s)]
    if not reached:
        return False
    born = _born(trace)
    if _left_unseen(seen, trace, poison):
        born = [e for e in born if e.site.index < poison.site.index]
    phases = {e.site.phase for e in born}
    early = bool(phases & _BEFORE_BACKWARD)
    return not early and ("loss" in reached or Phase.BACKWARD not in phases)


def _born(trace: ReplayTrace) -> list[Event]:
    return [e for e in trace.events if e.reaches and not e.harmless]


def _is_lost(trace: ReplayTrace, name: str) -> bool:
    """In the reference run as well: a format alone does not make it."""
    state = next((s for s in trace.sinks if s.sink == name), None)
    return state is not None and state.nonfinite > 0 and state.nonfinite_reference > 0
