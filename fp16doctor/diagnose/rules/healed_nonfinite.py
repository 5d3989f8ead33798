"""An inf or NaN of forward or backward that a later op takes out again.

What it checks:
    Ops with finite inputs whose output is non-finite as run and in the reference run alike, where
    no later op lets it through to the loss, a gradient, a parameter or a buffer. Masks of −inf
    and numbers for the log are not told.

Why it matters:
    The gradient of a root is infinite at 0; the ReLU in front of it has gradient 0 there, and
    drops it. Nothing is lost now. Another activation in that place, or a product with 0 in the
    place of a selection, makes NaN of it.

Example:
    h = torch.sqrt(torch.relu(x))    # backward: 0.5 / sqrt(0) = inf, dropped by relu's backward

Remedy:
    None is needed. Where the line is to be changed, keep the argument off the pole first: add eps
    under the root, clamp the divisor.

References:
    IEEE 754-2019, 7.2 (invalid operations) and 7.3 (division by zero)
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, made, op_in, place
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.trace import Event, EventKind


@rule(code="FD114", name="healed-nonfinite", needs=("traces",))
def healed_nonfinite(seen: Observations) -> Iterator[Finding]:
    """Yield one note per healed birth."""
    for trace in seen.traces:
        for event in trace.events:
            if event.kind is EventKind.HEALED:
                yield _finding(event, trace.reference)


def _finding(event: Event, reference: str) -> Finding:
    site, born = event.site, event.n_inf + event.n_nan
    return Finding(
        code="FD114",
        name="healed-nonfinite",
        severity=Severity.NOTE,
        fault=Fault.NAN_BIRTH,
        what=(
            f"{op_in(site)} is {made(event)} in {site.phase.value}, in the {reference} replay as "
            "well, and a later op takes it out again"
        ),
        cause=_cause(event),
        site=site,
        evidence=(
            Evidence("non-finite elements", measured=float(born), source="recorded",
                     format=event.format, count=born, total=event.total),
        ),
        consequences=event.later_nonfinite,
        chain=(site,) if event.healed_by is None else (site, event.healed_by),
    )  # fmt: skip


def _cause(event: Event) -> str:
    inherit = ""
    if event.later_nonfinite:
        verb = "inherits" if event.later_nonfinite == 1 else "inherit"
        inherit = f"{counted(event.later_nonfinite, 'later op')} {verb} it. "
    healer = ""
    if event.healed_by is not None:
        healer = f"{place(event.healed_by)} makes finite values of it. "
    return f"{inherit}{healer}It reaches no loss, gradient, parameter or buffer."
