"""What is told of an op without a finite result where no line of the script could be guarded.

Must not know how a guard is tried.
"""

from __future__ import annotations

from fp16doctor.prescribe.guards import QUOTIENTS, SUMS_OF_LOGS, Place, small_in
from fp16doctor.schema.location import OpSite, SourceLine

MOST = 0.5  # share of the elements outside the domain from which on the sign is in doubt
FEW = 8  # elements from which on it is asked whether most of them lie at the edge
TOLD = 0.05  # share of the elements that a guard acts on from which on it is told


def hides_a_sign(place: Place) -> bool:
    """Tell whether most of what an op got lies outside its domain: a bound would hide why."""
    return place.facts.outside > MOST * place.facts.total


def is_most_of_it(place: Place) -> bool:
    """Tell whether most of what an op hands on would be the guard's own constant.

    A quotient by 0 is left: there the divisor 0 is a case of its own, not a value off its domain.
    So is the logarithm of an impossible state.
    """
    facts = place.facts
    edge = facts.at_edge > MOST * facts.total and facts.total >= FEW
    return edge and place.op not in (*QUOTIENTS, *SUMS_OF_LOGS)


def reach(place: Place) -> str:
    """How much of what an op got the guard was made for, "" where that is little."""
    share = place.facts.at_edge / max(place.facts.total, 1)
    if share < TOLD:
        return ""
    return f"the guard acts on {100 * share:.2g} % of the elements that `{place.op}` got"


def in_words(place: Place) -> str:
    """Imperative for the reader; "" where the finding's own advice says as much."""
    if hides_a_sign(place):
        return _of_sign(place)
    if is_most_of_it(place):
        return (
            f"look at what `{place.op}` gets{_made_at(place.facts.made_by, place.line)}: "
            f"{place.facts.at_edge} of the {place.facts.total} elements in the kept steps lie at "
            "or beyond the edge of its domain; a guard makes them finite, and most of the result "
            "a constant"
        )
    if place.op not in QUOTIENTS:
        return ""
    if place.facts.is_count:
        return (
            f"clamp the count that `{place.op}` divides by, so that it is not zero: `.clamp(min=1)`"
        )
    if place.facts.least < 0:
        return (
            f"replace the divisors of `{place.op}` that are 0 in front of the division; some are "
            "negative, so that a clamp would change them, and a mask behind it comes too late"
        )
    return f"clamp the divisor of `{place.op}` away from 0: `.clamp(min={small_in(place.format)})`"


def _of_sign(place: Place) -> str:
    """The share that was measured, and the line whose values they are."""
    facts, what = place.facts, "negative" if place.op != "log1p" else "below −1"
    if place.op in ("acos", "asin"):
        what = "beyond ±1"
    thing = "scale" if place.op in ("acos", "asin") else "sign"
    return (
        f"check the {thing} of what `{place.op}` gets{_made_at(facts.made_by, place.line)}: "
        f"{facts.outside} of the {facts.total} elements in the kept steps are {what}, outside its "
        "domain; a clamp would hide that and train something else"
    )


def _made_at(site: OpSite | None, line: SourceLine) -> str:
    """``, made by `hazard = -torch.expm1(rate)` at train.py:16``."""
    made = None if site is None else site.caller or site.source
    if site is None or made is None or made == line:
        return ""
    text = f"`{made.text}`" if made.text else f"`{site.op}`"
    return f", made by {text} at {made.file}:{made.line}"
