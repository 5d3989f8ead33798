"""From a bundle to the few ops that show its fault: what the leading finding names comes first.

Must not know files or how an excerpt is written down.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.errors import BundleError, ReplayError
from fp16doctor.replay.casting import REFUSALS
from fp16doctor.replay.examine import examine
from fp16doctor.replay.excerpt.find import Suspect, find
from fp16doctor.replay.outcome import as_recorded
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.excerpt import Excerpt, Shows
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import EventKind, ReplayTrace

_BORN = (Shows.NONFINITE, Shows.NONFINITE_IN_BOTH)
_ROUNDED = (Shows.NONFINITE, Shows.INTEGER, Shows.ZERO, Shows.UNCHANGED, Shows.OFF)
_SHOWS: dict[Fault, tuple[Shows, ...]] = {
    Fault.OVERFLOW: (Shows.NONFINITE,),
    Fault.NAN_BIRTH: _BORN,
    Fault.UNDERFLOW: (Shows.ZERO, Shows.NONFINITE, Shows.OFF),
    Fault.PRECISION_LOSS: _ROUNDED,
    Fault.LOST_UPDATE: (Shows.UNCHANGED, Shows.ZERO, Shows.OFF),
}
_ANY = (Shows.NONFINITE, Shows.ZERO, Shows.UNCHANGED)
MOST_SUSPECTS = 8  # each replays the step up to its op


def excerpt_of(bundle: Bundle) -> Excerpt:
    """Return the ops that show the fault of a bundle.

    Raises:
        BundleError: no-fault-shown, where no op of the step shows one by itself.
        ReplayError: the step cannot be replayed here.
    """
    tried = []
    with as_recorded(bundle.origin):
        for count, suspect in enumerate(_suspects(bundle)):
            if count >= MOST_SUSPECTS:
                break
            found = _found(bundle.tape, suspect)
            if found is not None:
                return found
            tried.append(bundle.tape.ops[suspect.target].op)
    reason = f"tried {', '.join(dict.fromkeys(tried))}" if tried else "the step shows none"
    raise BundleError(
        f"no op of step {bundle.tape.step} shows a fault by itself ({reason}); the fault lies in"
        " how ops follow each other, see `fp16doctor replay`",
        "no-fault-shown",
    )


def _found(tape: Tape, suspect: Suspect) -> Excerpt | None:
    try:
        return find(tape, suspect)
    except ReplayError:
        raise
    except REFUSALS as error:
        raise ReplayError(
            f"replaying step {tape.step} failed: {error}; replay it on a machine like that of the"
            " recording",
            "replay-failed",
        ) from error


def _suspects(bundle: Bundle) -> Iterator[Suspect]:
    tape, finding = bundle.tape, bundle.origin.finding
    if tape.refused:
        yield Suspect(len(tape.ops) - 1, None, (Shows.REFUSED,))
        return
    if finding is not None:
        yield from _of_finding(tape, finding)
    trace = examine(tape, with_reference=True)
    yield from _of_events(tape, trace)
    yield from _of_rounding(tape, trace)


def _of_finding(tape: Tape, finding: Finding) -> Iterator[Suspect]:
    shows = _SHOWS.get(finding.fault, _ANY)
    cause = _place(tape, finding.cause_site)
    target = _place(tape, finding.site)
    if target is not None:
        yield Suspect(target, cause, shows)
    if cause is not None:
        yield Suspect(cause, None, (*shows, *_ROUNDED))


def _of_events(tape: Tape, trace: ReplayTrace) -> Iterator[Suspect]:
    for event in trace.events:
        target = _place(tape, event.site)
        if event.kind is not EventKind.INTENDED and target is not None:
            logic = event.kind in (EventKind.LOGIC, EventKind.UNKNOWN)
            shows = _BORN if logic else (Shows.NONFINITE,)
            yield Suspect(target, _place(tape, event.cause_site), shows)


def _of_rounding(tape: Tape, trace: ReplayTrace) -> Iterator[Suspect]:
    """Yield where integers changed and where most was lost to zeros."""
    if trace.precision is None:
        return
    losses = sorted(trace.precision.ops, key=lambda o: o.inherited_share - o.lost_share)
    places = [(i.site, Shows.INTEGER) for i in trace.precision.integers]
    places += [(o.site, Shows.ZERO) for o in losses if o.lost_share > o.inherited_share]
    for site, shows in places:
        target = _place(tape, site)
        if target is not None:
            yield Suspect(target, None, (shows,))


def _place(tape: Tape, site: OpSite | None) -> int | None:
    """Return where on the tape a site is, None where it is not."""
    if site is None or not 0 <= site.index < len(tape.ops):
        return None
    return site.index if tape.ops[site.index].op == site.op else None
