"""What a fault did to the training, in plain words: each a fact that the run or a replay recorded.

Must not know why it did (the finding says it), nor where a report shows it.
"""

from __future__ import annotations

import re
from math import isfinite

from fp16doctor.report import step_words, wording
from fp16doctor.report.run_story import (
    NONFINITE_FAULTS,
    gradients_lost,
    has_nonfinite_loss,
    no_steps,
)
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity

# How the quantities of two kinds of Evidence read: a sink that is finite and wrong, weights that
# the optimizer means to change.
_WRONG = re.compile(r"(loss|gradients|applied gradients|parameters|buffers) error")
_UNCHANGED = re.compile(r"unchanged elements .*over \d+ steps")


def harm(diagnosis: Diagnosis, top: Finding) -> list[str]:
    """What became of the training, the plainest first; empty where the finding itself says it."""
    steps = diagnosis.steps
    if not steps:
        return []
    if _ends_in_loss(diagnosis, top):
        at = f"at step {top.site.step}" if top.site else "in the last step"
        return [f"the loss is not finite {at}"]
    loss, none_taken = step_words.loss_words(steps), step_words.no_update(steps)
    said = [loss, none_taken or _mostly_skipped(diagnosis), _kept(top)]
    if top.severity is Severity.ERROR and not said[0]:
        said += [_wrong(top), _unmoved(top), step_words.no_fall(steps)]
    return [p for p in said if p]


def beside(diagnosis: Diagnosis, top: Finding) -> list[str]:
    """What else the steps show, where ``harm`` has not said it."""
    steps = diagnosis.steps
    if not steps:
        return [no_steps(diagnosis).message]
    told = harm(diagnosis, top)
    skips = step_words.skips(steps)
    course = step_words.course(steps)
    if _known_loss(diagnosis, top) and top.fault in NONFINITE_FAULTS and not _of_loss(told):
        course = (
            f"the loss stays finite{course.removeprefix('the loss').replace(' went', ', it went')}"
        )
    said = (gradients_lost(top), skips if skips not in told else "", step_words.scale_words(steps))
    return [p for p in (*said, "" if _of_loss(told) else course) if p]


def _of_loss(told: list[str]) -> bool:
    return any(p.startswith("the loss ") for p in told)


def without_a_finding(diagnosis: Diagnosis) -> list[str]:
    """Skipped steps and loss scale of a run that no finding leads."""
    steps, sound = diagnosis.steps, not has_nonfinite_loss(diagnosis)
    if sound and (told := step_words.settled(steps)):
        return [told]
    said = (step_words.no_update(steps), step_words.skips(steps), step_words.scale_words(steps))
    return [p for p in said if p]


def _ends_in_loss(diagnosis: Diagnosis, top: Finding) -> bool:
    """The step that stopped the script has a loss that no update closed."""
    finite = not any(step_words.nonfinite(s.loss) for s in diagnosis.steps)
    names_one = any(e.quantity == "loss" and isfinite(e.measured) for e in top.evidence)
    return top.fault in NONFINITE_FAULTS and "loss" in top.reaches and finite and not names_one


def _known_loss(diagnosis: Diagnosis, top: Finding) -> bool:
    known = {s.step for s in diagnosis.steps if s.loss is not None}
    return top.severity is Severity.ERROR and top.site is not None and top.site.step in known


def _kept(top: Finding) -> str:
    """What outlives the step: running statistics that evaluation reads, as of a batch norm."""
    left = top.fault in NONFINITE_FAULTS and top.severity is Severity.ERROR
    only = "buffers" in top.reaches and "parameters" not in top.reaches
    return "inf or NaN is left in the buffers" if left and only else ""


def _mostly_skipped(diagnosis: Diagnosis) -> str:
    """Skips are what became of the training where they are more than the steps taken."""
    skipped = sum(s.skipped for s in diagnosis.steps)
    return step_words.skips(diagnosis.steps) if 2 * skipped > len(diagnosis.steps) else ""


def _wrong(top: Finding) -> str:
    """``the gradients are finite and wrong (100 % off the fp64 replay)``."""
    for e in top.evidence:
        match = _WRONG.fullmatch(e.quantity)
        if match and e.source.startswith(wording.REPLAYED):
            verb = "is" if match[1] == "loss" else "are"
            off = f"{wording.whole_share(e.measured)} off the {_policy(e)} replay"
            return f"the {match[1]} {verb} finite and wrong ({off})"
    return ""


def _policy(evidence: Evidence) -> str:
    return evidence.source.removeprefix(wording.REPLAYED)


def _unmoved(top: Finding) -> str:
    """``the bf16 weights do not change``, or the share of them that does not."""
    if top.fault is not Fault.LOST_UPDATE or "parameters" not in top.reaches:
        return ""
    for e in reversed(top.evidence):  # what is counted over all parameters comes last
        if _UNCHANGED.fullmatch(e.quantity) and e.count is not None and e.total:
            over = e.quantity.rpartition(" over ")[2].replace(" steps", " replayed steps")
            if e.count == e.total:
                return f"the {e.format} weights do not change in {over}"
            share = wording.of_total(e.count, e.total)
            return f"{share} elements of the {e.format} weights do not change in {over}"
    return ""
