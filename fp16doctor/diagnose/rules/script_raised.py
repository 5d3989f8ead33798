"""The script raised, at a call that mixed precision refuses or after values went non-finite.

What it checks:
    The exception that ended the script: what GradScaler and autocast refuse, operands of
    different formats, constants a format cannot hold, ops a format does not have. Any other
    exception is a note, which says whether values were non-finite before it.

Why it matters:
    These exceptions are about the use of mixed precision, not about the model; the message alone
    seldom says which call is missing, doubled or in the wrong order.

Example:
    scaler.unscale_(optimizer); clip(…); scaler.unscale_(optimizer)    # called twice

Remedy:
    One order for every step: scale, backward, unscale_ once, clip, step once, update once.
    Operands of one format, or autocast around the call.

References:
    PyTorch documentation, Automatic Mixed Precision examples; torch.amp.GradScaler;
    torch.autocast, "Prefer binary_cross_entropy_with_logits over binary_cross_entropy"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import causes
from fp16doctor.diagnose.refusals import Refusal, refusal_of
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import at_line, place
from fp16doctor.schema.finding import SCALER_RAISED, Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.recording import Outcome, OutcomeKind

_LONGEST_MESSAGE = 160
# A raised call that never reached the tape has no position on it.
_OFF_TAPE = -1


@rule(code="FD901", name="script-raised", needs=("recording",))
def script_raised(seen: Observations) -> Iterator[Finding]:
    """Yield one finding where an exception ended the script."""
    outcome = seen.recording.run.outcome
    if outcome.kind is not OutcomeKind.RAISED:
        return
    refusal = refusal_of(outcome.message or "")
    if refusal is not None:
        yield _misuse(seen, outcome, refusal)
    else:
        yield _note(seen, outcome)


def _site(seen: Observations, outcome: Outcome) -> OpSite | None:
    """The call that raised, or the user's line where it was no ATen call."""
    if outcome.raised_by is not None:
        return outcome.raised_by
    if outcome.source is None:
        return None
    known = [s.step for s in seen.recording.steps] + [t.step for t in seen.traces]
    return OpSite(max(known, default=-1), Phase.SCRIPT, "", _OFF_TAPE, source=outcome.source)


def _raised(outcome: Outcome) -> str:
    first_line = (outcome.message or "").strip().partition("\n")[0]
    if len(first_line) > _LONGEST_MESSAGE:
        first_line = first_line[: _LONGEST_MESSAGE - 1] + "…"
    where = "" if outcome.source is None else at_line(outcome.source)
    text = f": {first_line}" if first_line else ""
    return f"the script raised {outcome.exception or 'an exception'}{where}{text}".rstrip(".")


def _misuse(seen: Observations, outcome: Outcome, refusal: Refusal) -> Finding:
    return Finding(
        code="FD901",
        name="script-raised",
        severity=Severity.ERROR,
        fault=Fault.MISUSE,
        what=_raised(outcome),
        cause=refusal.cause,
        site=_site(seen, outcome),
        evidence=(Evidence(SCALER_RAISED, 1.0, "recorded"),) if refusal.by_scaler else (),
        advice=refusal.advice,
    )


def _note(seen: Observations, outcome: Outcome) -> Finding:
    return Finding(
        code="FD901",
        name="script-raised",
        severity=Severity.NOTE,
        fault=Fault.OBSERVATION,
        what=_raised(outcome),
        cause=_before_it(seen),
        site=_site(seen, outcome),
    )


def _before_it(seen: Observations) -> str:
    """What was non-finite before the exception."""
    first = next((c for c in causes(seen) if c.event.reaches or c.ended), None)
    if first is not None:
        return (
            f"Values were non-finite before it: see {place(first.event.site)} "
            f"in step {first.event.site.step}."
        )
    step = next((s.step for s in seen.recording.steps if s.n_nonfinite_ops), None)
    if step is not None:
        return f"Values were non-finite before it, first in step {step}."
    return "No non-finite value was seen before it, and the message names no precision."
