"""What the steps of a run tell by themselves: losses, skipped steps, loss scales, the exception.

Must not know what a reader is shown first (``answer``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp16doctor.report import wording
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind, StepInfo

_NONFINITE_FAULTS = (Fault.OVERFLOW, Fault.NAN_BIRTH)
BECAME_ZERO = "that became zero"  # how the quantity of an Evidence on lost gradients ends
ZEROS_EXCLUDED = "zeros that belong there excluded"
_FALL = 4  # a loss scale that fell by at least this factor is part of the story


def has_nonfinite_loss(diagnosis: Diagnosis) -> bool:
    """Whether any loss was inf or NaN, but for steps that a scaler caught and a note explains."""
    lost = lost_step(diagnosis)
    told = {lost.site.step} if lost is not None and lost.site is not None else set()
    return any(_nonfinite(s.loss) and not (s.skipped and s.step in told) for s in diagnosis.steps)


def lost_step(diagnosis: Diagnosis) -> Finding | None:
    """The note on a step that was lost to a non-finite value and skipped by the scaler."""
    skipped = {s.step for s in diagnosis.steps if s.skipped and _nonfinite(s.loss)}
    notes = (f for f in diagnosis.findings if f.fault in _NONFINITE_FAULTS and f.site)
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
    notes = (f for f in diagnosis.findings if f.fault in _NONFINITE_FAULTS and f.site)
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


def run_clauses(diagnosis: Diagnosis, top: Finding | None) -> list[str]:
    """Short facts about loss, optimizer steps and loss scale; what is ordinary is left out."""
    steps = diagnosis.steps
    if not steps:
        return [no_steps(diagnosis).message] if top else []
    stays = bool(top and top.severity is Severity.ERROR and _has_known_loss(steps, top))
    if (
        top
        and top.fault in _NONFINITE_FAULTS
        and "loss" in top.reaches
        and not any(_nonfinite(s.loss) for s in steps)
    ):
        # the step that stopped the script has a loss that no update closed
        when = f"at step {top.site.step}" if top.site else "in the last step"
        return [f"the loss is not finite {when}", *_updates(steps)]
    settled = top is None and not has_nonfinite_loss(diagnosis)
    course = loss_story(diagnosis) if top and top.fault not in _NONFINITE_FAULTS else ""
    lost = _lost_gradient(top) if top else ""
    return [p for p in (lost, _loss(steps, stays), *_updates(steps, settled=settled), course) if p]


_OF = "elements of "  # a parameter follows; what the optimizer keeps has no name there


def loses_gradients(finding: Finding) -> bool:
    """Whether it has counted gradient elements that became zero."""
    return _lost_gradient(finding) != ""


def _lost_gradient(top: Finding) -> str:
    """``5 114 of 5 184 (98.6 %) elements … became zero, zeros that belong there excluded``."""
    for e in top.evidence:
        of_one = e.quantity.startswith(_OF) and e.quantity.endswith(BECAME_ZERO)
        if of_one and e.count is not None and e.total is not None:
            what = e.quantity.removesuffix(f" {BECAME_ZERO}").removeprefix(_OF)
            share = wording.of_total(e.count, e.total)
            return f"{share} gradient elements of {what} became zero, {ZEROS_EXCLUDED}"
    return ""


def _has_known_loss(steps: Sequence[StepInfo], top: Finding) -> bool:
    """Whether the step of a non-finite value has a loss: one that no update closed has none."""
    known = {s.step for s in steps if s.loss is not None}
    return top.fault in _NONFINITE_FAULTS and top.site is not None and top.site.step in known


def _updates(steps: Sequence[StepInfo], *, settled: bool = False) -> list[str]:
    """What the scaler did; ``settled``: nothing is wrong, so that skips may have found a scale."""
    if settled and (told := _settled(steps)):
        return [told]
    return [p for p in (_skipped(steps), _scale(steps)) if p]


def _settled(steps: Sequence[StepInfo]) -> str:
    """``3 of 50 optimizer steps were skipped (steps 0, 1 and 5) while the loss scale settled``.

    It has settled where at least as many steps follow the last skip as came up to it.
    """
    skipped = [s.step for s in steps if s.skipped]
    after = sum(s.step > skipped[-1] for s in steps) if skipped else 0
    scales = _scales(steps)
    if not scales or after < len(steps) - after or not all(s.found_inf for s in steps if s.skipped):
        return ""
    first, last = map(wording.number, (scales[0], scales[-1]))
    return (
        f"{_skipped(steps)} ({wording.steps_named(skipped)}) while the loss scale settled from "
        f"{first} to {last}: it starts high and is halved until the gradients fit"
    )


def loss_story(diagnosis: Diagnosis) -> str:
    """``the loss went from 2.3141 to 0.97201``, "" with fewer than two finite losses."""
    losses = [s.loss for s in diagnosis.steps if s.loss is not None]
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return ""
    return f"the loss went from {wording.loss(losses[0])} to {wording.loss(losses[-1])}"


def first_nonfinite(diagnosis: Diagnosis) -> OpSite | None:
    """The earliest op that made a non-finite value; of notes only the one the answer is about."""
    top = top_finding(diagnosis)
    told = [f for f in diagnosis.findings if f.severity is not Severity.NOTE or f is top]
    sites = [f.site for f in told if f.site and f.fault in _NONFINITE_FAULTS]
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


def _nonfinite(loss: float | None) -> bool:
    return loss is not None and not math.isfinite(loss)


def _loss(steps: Sequence[StepInfo], stays_finite: bool) -> str:
    known = [s for s in steps if s.loss is not None]
    wrong = [s for s in known if _nonfinite(s.loss)]
    if not wrong:
        return "the loss stays finite" if known and stays_finite else ""
    word = "NaN" if all(math.isnan(s.loss or 0.0) for s in wrong) else "non-finite"
    return f"the loss is {word} {_when(known, wrong)}"


def _when(known: Sequence[StepInfo], wrong: Sequence[StepInfo]) -> str:
    if len(known) > 1 and len(wrong) == len(known):
        return f"at every step ({wording.count(len(wrong))} of {wording.count(len(known))})"
    if len(wrong) > 1 and list(known[-len(wrong) :]) == list(wrong):
        return f"from step {wrong[0].step} on"
    if len(wrong) == 1:
        return f"at step {wrong[0].step}"
    return f"at {wording.count(len(wrong))} of {wording.count(len(known))} steps"


def _skipped(steps: Sequence[StepInfo]) -> str:
    skipped = sum(s.skipped for s in steps)
    of = f"{wording.count(skipped)} of {wording.count(len(steps))}"
    if skipped == len(steps):
        none = f"0 of {wording.count(len(steps))} optimizer steps were taken"
        return f"{none} ({wording.count(skipped)} skipped): the model has not trained"
    return f"{of} optimizer steps were skipped" if skipped else ""


def _scale(steps: Sequence[StepInfo]) -> str:
    scales = _scales(steps)
    if not scales or scales[-1] * _FALL > scales[0]:
        return ""
    return f"the loss scale fell from {wording.number(scales[0])} to {wording.number(scales[-1])}"


def _scales(steps: Sequence[StepInfo]) -> list[float]:
    """The scale of each step and the one that it leaves behind, in order."""
    pairs = ((s.loss_scale, s.next_loss_scale) for s in steps)
    return [scale for pair in pairs for scale in pair if scale is not None]
