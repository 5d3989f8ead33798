"""The sentences for a pole that a 16-bit tensor held before the step.

Must not know findings.
"""

from __future__ import annotations

from fp16doctor.diagnose.causes import Cause, Words
from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.sentences import born, fate, number, op_in, place
from fp16doctor.schema.finding import STORED, Evidence, Severity
from fp16doctor.schema.trace import StoredPole


def stored_words(cause: Cause, stored: StoredPole) -> Words:
    """Say what only another stored value can change; no replay has the one that was rounded."""
    name, value, site = stored.format, number(stored.value), cause.event.site
    holder = f"`{stored.name}`" if stored.name else "a tensor"
    what = (
        f"{op_in(site)} is {born(cause)}: {holder} holds exactly {value} in {name}, "
        f"and its difference from {value} is 0"
    )
    why = (
        f"{place(stored.site)} takes the difference of {value} and {holder} stored in {name}, "
        f"where every number from {_neighbour(stored, -0.25)} to {_neighbour(stored, 0.5)} is "
        f"{value}. What it was before it was stored is not in the step: the "
        f"{cause.trace.reference} replay has 0 there too. {fate(cause)}"
    )
    held = f"`{stored.name}`" if stored.name else f"the tensor of {place(stored.site)}"
    advice = (
        f"make and hold {held} in fp32, which keeps {_neighbour(stored, -0.25)} and {value} apart; "
        f"where it is {value} in fp32 too, keep the difference away from 0"
    )
    return Words(what, why, "" if cause.severity is Severity.NOTE else advice)


def stored_evidence(stored: StoredPole) -> Evidence:
    """Return the stored value; by its name the trials know that no replay has another one."""
    return Evidence(STORED, stored.value, "recorded", format=stored.format)


def _neighbour(stored: StoredPole, spacings: float) -> str:
    """The end of the interval that is rounded to the value, in spacings above a power of two."""
    ulp = limits(stored.format).eps * abs(stored.value)
    return number(stored.value + spacings * ulp, 5)
