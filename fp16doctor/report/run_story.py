"""What a run tells by itself: its leading finding, steps that were lost, how the script ended.

Must not know what a reader is shown first (``answer``).
"""

from __future__ import annotations

from fp16doctor.report import wording
from fp16doctor.report.step_words import nonfinite
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind, StepInfo

NONFINITE_FAULTS = (Fault.OVERFLOW, Fault.NAN_BIRTH)
BECAME_ZERO = "that became zero"  # how the quantity of an Evidence on lost gradients ends
ZEROS_EXCLUDED = "zeros that belong there excluded"


def has_nonfinite_loss(diagnosis: Diagnosis) -> bool:
    """Whether any loss was inf or NaN, but for steps that a scaler caught and a note explains."""
    lost = lost_step(diagnosis)
    told = {lost.site.step} if lost is not None and lost.site is not None else set()
    return any(nonfinite(s.loss) and not (s.skipped and s.step in told) for s in diagnosis.steps)


def lost_step(diagnosis: Diagnosis) -> Finding | None:
    """The note on a step that was lost to a non-finite value and skipped by the scaler."""
    skipped = {s.step for s in diagnosis.steps if s.skipped and nonfinite(s.loss)}
    notes = (f for f in diagnosis.findings if f.fault in NONFINITE_FAULTS and f.site)
    return next((f for f in notes if f.site and f.site.step in skipped), None)


def left_out(diagnosis: Diagnosis) -> Finding | None:
    """The note on a loss that was not finite and that the script itself did not train on."""
    return next((f for f in diagnosis.findings if f.left_out), None)


def unknown_steps(diagnosis: Diagnosis) -> list[StepInfo]:
    """Steps that were taken and made inf or NaN, and whose loss is not known."""
    taken = (s for s in diagnosis.steps if not s.skipped)
    return [s for s in taken if s.loss is None and s.n_nonfinite_ops]


def top_finding(diagnosis: Diagnosis) -> Finding | None:
    """The finding that the answer is about.

    A note is one only where the script raised: the step that raised never reached the loss or the
    optimizer, so that a non-finite value in it had no time to do harm.
    """
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first and first.severity is not Severity.NOTE:
        return first
    if diagnosis.run.outcome.kind is not OutcomeKind.RAISED:
        return None
    last = max((s.step for s in diagnosis.steps), default=-1)
    notes = (f for f in diagnosis.findings if f.fault in NONFINITE_FAULTS and f.site)
    return next((f for f in notes if f.site and f.site.step >= last), None)


def no_steps(diagnosis: Diagnosis) -> Caution:
    """Why the run has no steps: others may have taken them, recording stopped, none was taken."""
    slugs = ("other-thread", "other-processes", "recorder-stopped")
    known = (w for w in diagnosis.warnings if w.slug in slugs)
    return next(known, Caution("no-steps", "no optimizer step was seen"))


def not_examined(diagnosis: Diagnosis) -> str:
    """Why no check could say anything about training; "" where something was seen of it."""
    if diagnosis.steps or diagnosis.findings:
        return ""
    return no_steps(diagnosis).message.rstrip(".")


_OF = "elements of "  # a parameter follows; what the optimizer keeps has no name there


def loses_gradients(finding: Finding) -> bool:
    """Whether it has counted gradient elements that became zero."""
    return gradients_lost(finding) != ""


def gradients_lost(top: Finding) -> str:
    """``5 114 of 5 184 (98.6 %) elements … became zero, zeros that belong there excluded``."""
    for e in top.evidence:
        of_one = e.quantity.startswith(_OF) and e.quantity.endswith(BECAME_ZERO)
        if of_one and e.count is not None and e.total is not None:
            what = e.quantity.removesuffix(f" {BECAME_ZERO}").removeprefix(_OF)
            share = wording.of_total(e.count, e.total)
            return f"{share} gradient elements of {what} became zero, {ZEROS_EXCLUDED}"
    return ""


def first_nonfinite(diagnosis: Diagnosis) -> OpSite | None:
    """The earliest op that made a non-finite value; of notes only the one the answer is about."""
    top = top_finding(diagnosis)
    told = [f for f in diagnosis.findings if f.severity is not Severity.NOTE or f is top]
    sites = [f.site for f in told if f.site and f.fault in NONFINITE_FAULTS]
    return min(sites, key=lambda s: (s.step, s.index), default=None)


def exception_story(diagnosis: Diagnosis) -> str:
    """How the script ended, where it did not end well, and where values went wrong before that."""
    outcome = diagnosis.run.outcome
    if outcome.kind in (OutcomeKind.EXITED, OutcomeKind.INTERRUPTED):
        return outcome_words(outcome)
    if outcome.kind is not OutcomeKind.RAISED:
        return ""
    raised = outcome_words(outcome)
    top = top_finding(diagnosis)
    if top and "the script raised" in top.what:
        raised = ""  # the finding is the exception itself
    return "; ".join(p for p in (raised, _before_exception(diagnosis)) if p)


def outcome_words(outcome: Outcome) -> str:
    """``the script raised ValueError at train.py:99: loss is nan``, and so on for every end."""
    at = f" at {wording.location(outcome.source)}" if outcome.source else ""
    said = f": {wording.first_line(outcome.message).rstrip('.')}" if outcome.message else ""
    return {
        OutcomeKind.FINISHED: "the script ran to its end",
        OutcomeKind.STOPPED: "ended after the number of steps asked for",
        OutcomeKind.EXITED: f"the script exited with status {outcome.status}",
        OutcomeKind.RAISED: f"the script raised {outcome.exception or 'an exception'}{at}{said}",
        OutcomeKind.INTERRUPTED: "the script was interrupted",
    }[outcome.kind]


def _before_exception(diagnosis: Diagnosis) -> str:
    first = first_nonfinite(diagnosis)
    if first is None:
        return "no finding places a non-finite value before it"
    raised_by = diagnosis.run.outcome.raised_by
    last = raised_by.step if raised_by else max((s.step for s in diagnosis.steps), default=-1)
    ago = last - first.step
    before = f"{wording.plural(ago, 'step')} before the exception"
    when = before if ago > 0 else "in the step that raised"
    return f"first non-finite value {when}: {wording.brief(first)}"
