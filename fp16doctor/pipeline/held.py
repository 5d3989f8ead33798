"""Whether a run under the cure shows that the cure holds for the script itself.

Must not know how the run was made (``confirm``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, pstdev

from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.prescription import RemedyKind
from fp16doctor.schema.recording import Outcome, OutcomeKind, StepInfo

END_SHARE = 0.2  # of the steps whose losses are the loss at the end
WORSE = 0.05  # share of the loss by which the end may be worse, the two runs round differently
SPREAD = 2.0  # standard deviations of the losses at the end by which it may be worse
MOST_SKIPPED = 0.5  # share of the steps that a settling scaler may skip
_FINE = (OutcomeKind.FINISHED, OutcomeKind.STOPPED)
_DEMANDING = (Severity.ERROR, Severity.WARNING)


def why_not_held(before: Diagnosis, after: Diagnosis) -> str:
    """Return the first reason why the cure does not hold; "" where it does."""
    return next(
        (
            reason
            for reason in (
                _ending(before, after.run.outcome),
                _too_short(before, after),
                _left(before, after),
                _losses(after),
                _skipped(before, after),
                _new_error(before, after),
                _worse(before, after),
            )
            if reason
        ),
        "",
    )


def numbers(diagnosis: Diagnosis) -> dict[str, float]:
    """Return what is compared of one run."""
    steps = [s for s in diagnosis.steps if s.loss is not None]
    out = {
        "steps": float(len(diagnosis.steps)),
        "steps with a finite loss": float(sum(math.isfinite(s.loss or 0.0) for s in steps)),
        "steps skipped": float(sum(s.skipped for s in diagnosis.steps)),
    }
    losses = [s.loss for s in steps if s.loss is not None]
    if losses:
        out["loss at the end"] = _end(losses)
    return out


def _ending(before: Diagnosis, outcome: Outcome) -> str:
    if outcome.kind in _FINE:
        return ""
    was = before.run.outcome
    if outcome.kind is OutcomeKind.EXITED:
        same = was.kind is OutcomeKind.EXITED and was.status == outcome.status
        return "" if same else f"the script exits with status {outcome.status} under it"
    said = f"{outcome.exception}: {outcome.message}".splitlines()[0]
    return f"the script ends with {said}"


def _too_short(before: Diagnosis, after: Diagnosis) -> str:
    if len(after.steps) >= len(before.steps):
        return ""
    return f"the run under it has {len(after.steps)} steps, the run before {len(before.steps)}"


def _left(before: Diagnosis, after: Diagnosis) -> str:
    """A finding that the cure treats, or one of its family at its place."""
    for treated in _treated(before):
        for found in _demanding(after):
            same_place = found.fault is treated.fault and _same_place(found.site, treated.site)
            if found.code == treated.code or same_place:
                return f"{found.code} is left: {found.what}"
    return ""


def _treated(before: Diagnosis) -> Iterator[Finding]:
    for i in before.recommendation.prescriptions:
        yield from (before.findings[n] for n in before.prescriptions[i].treats)


def _same_place(one: OpSite | None, other: OpSite | None) -> bool:
    if one is None or other is None:
        return False
    if one.source is not None and other.source is not None:
        mine, theirs = one.source, other.source
        return (mine.file, mine.line) == (theirs.file, theirs.line)
    return bool(one.module_path) and one.module_path == other.module_path


def _demanding(diagnosis: Diagnosis) -> Iterator[Finding]:
    return (f for f in diagnosis.findings if f.severity in _DEMANDING)


def _losses(after: Diagnosis) -> str:
    bad = [s.step for s in after.steps if s.lost]
    if not bad:
        return ""
    steps = f"{len(bad)} steps, first in" if len(bad) > 1 else "one step:"
    why = next((f": {f.code} {f.what}" for f in _demanding(after)), "")
    return f"under it the loss is not finite in {steps} step {bad[0]}{why}"


def _skipped(before: Diagnosis, after: Diagnosis) -> str:
    share = _share_skipped(after.steps)
    if share <= max(MOST_SKIPPED, _share_skipped(before.steps) / 2):
        return ""
    return f"{sum(s.skipped for s in after.steps)} of {len(after.steps)} steps are skipped"


def _share_skipped(steps: tuple[StepInfo, ...]) -> float:
    return sum(s.skipped for s in steps) / max(len(steps), 1)


def _new_error(before: Diagnosis, after: Diagnosis) -> str:
    for found in _new(before, after):
        if not _stands_alone(before, found):
            return f"{found.code} is new: {found.what}"
    return ""


def beside_it(before: Diagnosis, after: Diagnosis) -> str:
    """Return an error that the cured fault hid, "" where there is none."""
    hidden = [f for f in _new(before, after) if _stands_alone(before, f)]
    return f"{hidden[0].code} shows now: {hidden[0].what}" if hidden else ""


def _new(before: Diagnosis, after: Diagnosis) -> Iterator[Finding]:
    known = {code for f in before.findings for code in (f.code, *f.subsumes)}
    return (f for f in after.findings if f.severity is Severity.ERROR and f.code not in known)


def _stands_alone(before: Diagnosis, found: Finding) -> bool:
    """Tell whether an error cannot come from the cure.

    What a stored tensor does not take of its updates depends on its format; a run whose updates
    were non-finite or zero does not show it. A cure that leaves stored formats alone uncovers it.
    """
    chosen = (before.prescriptions[i].remedy.kind for i in before.recommendation.prescriptions)
    leaves = all(kind not in (RemedyKind.DTYPE, RemedyKind.STORAGE) for kind in chosen)
    return leaves and found.fault is Fault.LOST_UPDATE


def _worse(before: Diagnosis, after: Diagnosis) -> str:
    """The loss at the end against that of the run before, where that stayed finite."""
    old, new = (
        [s.loss for s in d.steps if s.loss is not None and not s.skipped] for d in (before, after)
    )
    if not old or not new or not all(map(math.isfinite, old)):
        return ""
    was, now = _end(old), _end(new)
    allowed = WORSE * abs(was) + SPREAD * max(pstdev(_last(old)), pstdev(_last(new)))
    if now <= was + allowed:
        return ""
    return f"the loss at the end is {now:.4g}, worse than {was:.4g} as run"


def _end(losses: list[float]) -> float:
    return fmean(_last(losses))


def _last(losses: list[float]) -> list[float]:
    return losses[-max(1, int(len(losses) * END_SHARE)) :]
