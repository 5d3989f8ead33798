"""What stands behind an answer: how much was replayed, what the reference shows, what was not seen.

Must not know the other lines of the answer.
"""

from __future__ import annotations

import math

from fp16doctor.report import wording
from fp16doctor.report.proved import proved
from fp16doctor.report.run_story import top_finding
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, OutcomeOfCheck, Severity
from fp16doctor.schema.prescription import Prescription, RecommendationStatus, Verdict

_EACH = "each "
_NO_TIME = "no-time-budget"  # slug of the warning that says why no cure was tried


def proof_line(diagnosis: Diagnosis) -> str:
    """The line at the top: what was replayed, what that showed, and what was not seen."""
    shown = "; ".join(p for p in (_reference(diagnosis), proved(diagnosis)) if p)
    return wording.joined(shown, replay_line(diagnosis), _not_seen(diagnosis))


def replay_line(diagnosis: Diagnosis) -> str:
    """``9 of 60 steps replayed (1 540 ops), each bit-equal to the run``."""
    replay = diagnosis.replay
    if replay.fidelity is None and any(c.verification.steps for c in diagnosis.prescriptions):
        return "cures were tried by replay; the evidence is recorded in the run itself"
    if replay.fidelity is None:
        return "nothing was replayed: all evidence is recorded in the run itself"
    how_much = f"{_steps(diagnosis)} replayed ({wording.plural(replay.n_ops, 'op')})"
    if replay.fidelity.bit_equal:
        return f"{how_much}, {_EACH if len(replay.steps) > 1 else ''}bit-equal to the run"
    difference = wording.number(replay.fidelity.largest_difference)
    return f"{how_much}, with differences from the run of up to {difference}"


def _steps(diagnosis: Diagnosis) -> str:
    """``9 of 60 steps``; the step that ended the run is not one of those it completed."""
    replayed, whole = len(diagnosis.replay.steps), {s.step for s in diagnosis.steps}
    if not whole.issuperset(diagnosis.replay.steps):
        return wording.plural(replayed, "step")
    return f"{wording.count(replayed)} of {wording.plural(len(whole), 'step')}"


def _reference(diagnosis: Diagnosis) -> str:
    top, reference = top_finding(diagnosis), diagnosis.replay.reference
    if diagnosis.replay.fidelity is None or reference == "none" or not top:
        return ""
    if diagnosis.recommendation.status is RecommendationStatus.NOT_PRECISION:
        of_its_step = _replayed_in(top) or reference
        return f"the {of_its_step} replay of the same step has the fault as well"
    if diagnosis.recommendation.status is RecommendationStatus.PRESCRIBED:
        return ""  # what the cure shows says more
    source = f"{wording.REPLAYED}{reference}"
    for e in top.evidence:
        if e.source == source and e.quantity == "amax" and math.isfinite(e.measured):
            amax = wording.number(e.measured)
            return f"the {reference} replay of the same step is finite there (largest value {amax})"
    return ""


def _replayed_in(finding: Finding) -> str:
    """The reference of the finding's own step: other steps may have had another."""
    sources = (e.source for e in finding.evidence if e.source.startswith(wording.REPLAYED))
    return next(sources, "").removeprefix(wording.REPLAYED)


def _not_seen(diagnosis: Diagnosis) -> str:
    replay = diagnosis.replay
    failed = sum(c.outcome is OutcomeOfCheck.FAILED for c in diagnosis.checks)
    parts = [
        _untried(diagnosis),
        "whatever only a replay shows" if replay.fidelity is None else "",
        f"{wording.plural(failed, 'failed check')}" if failed else "",
        f"what feeds {wording.plural(replay.opaque, 'op')} (taken from the run)"
        if replay.opaque
        else "",
        f"{wording.plural(replay.pinned, 'pinned op')}" if replay.pinned else "",
    ]
    named = ", ".join(p for p in parts if p)
    seen = wording.joined(f"not seen: {named}" if named else "", _limit(diagnosis))
    return seen or "no op of them was left out, no check failed"


def _limit(diagnosis: Diagnosis) -> str:
    """The first limit of the observation, in one sentence: all are listed below with the rest."""
    limits = diagnosis.warnings
    if not limits:
        return ""
    more = f"; {wording.count(len(limits) - 1)} more below" if len(limits) > 1 else ""
    said = wording.first_sentence(limits[0].message)
    return f"limit of the observation: {said}  [{limits[0].slug}]{more}"


def _untried(diagnosis: Diagnosis) -> str:
    """``whether a cure helps (no step was kept …)`` where a cure is named and none was tried."""
    top, cures = top_finding(diagnosis), diagnosis.prescriptions
    told = any(w.slug == _NO_TIME for w in diagnosis.warnings)
    if top is None or top.severity is Severity.NOTE or told or any(map(_was_tried, cures)):
        return ""
    why = next((c.verification.reason for c in cures if c.verification.reason), "")
    if cures:
        return f"whether a cure helps ({why})" if why else "whether a cure helps"
    return "whether the advice helps (no cure was tried)" if top.advice else ""


def _was_tried(cure: Prescription) -> bool:
    verdict = cure.verification.verdict
    return verdict is not Verdict.NOT_VERIFIED or bool(cure.verification.steps)
