"""Measured numbers of an overflow, with the limit they stand against.

Must not know the words around them.
"""

from __future__ import annotations

import math

from fp16doctor.diagnose.causes import Cause
from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.measures import magnitude
from fp16doctor.schema.finding import REFERENCE_FAILS, Evidence


def overflow_evidence(cause: Cause) -> tuple[Evidence, ...]:
    """The largest exact magnitude against the format's threshold, and the headroom in bits."""
    event = cause.event
    size = magnitude(event)
    if size is None:
        return ()
    amax = Evidence(
        "amax",
        measured=size,
        source=f"replayed:{cause.trace.reference}",
        limit=limits(event.format).overflow_threshold,
        limit_name="overflow_threshold",
        format=event.format,
        worst_index=event.site.element,
    )
    if size == 0:
        return (amax,)
    # Headroom as in the glossary: log2(max / amax), negative when over.
    bits = math.log2(limits(event.format).max) - math.log2(size)
    return amax, Evidence("headroom", measured=bits, source="derived", format=event.format)


def operand_evidence(role: str, as_run: float, reference: float, policy: str) -> Evidence:
    """An operand as run, beside its value in the reference run."""
    return Evidence(
        f"operand {role}".strip(),
        measured=as_run,
        source="recorded",
        limit=reference,
        limit_name=f"replayed:{policy}",
    )


def failing_evidence(cause: Cause) -> tuple[Evidence, ...]:
    """What is not finite in the reference run either, if anything is."""
    count = cause.fails_anyway
    return (
        (Evidence(REFERENCE_FAILS, float(count), f"replayed:{cause.trace.reference}"),)
        if count
        else ()
    )
