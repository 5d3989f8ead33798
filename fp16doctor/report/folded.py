"""Which untried advice is told beside a cure that was tried for the same finding.

Must not know how either is worded.
"""

from __future__ import annotations

from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict


def folded_advice(diagnosis: Diagnosis) -> dict[int, int]:
    """Return the position of each such advice -> that of the cure it is told beside.

    A finding advises in words what the remedies then try as a format, a scale or a keep-list. Where
    one of those was verified for all that the advice treats, the words are no second cure. What is
    recommended itself stays.
    """
    found = {}
    for place, advice in enumerate(diagnosis.prescriptions):
        if place in diagnosis.recommendation.prescriptions or not _only_words(diagnosis, advice):
            continue
        tried = [i for i, p in enumerate(diagnosis.prescriptions) if _covers(p, advice)]
        if tried:
            chosen = diagnosis.recommendation.prescriptions
            found[place] = min(tried, key=lambda i: (i not in chosen, i))
    return found


def _only_words(diagnosis: Diagnosis, cure: Prescription) -> bool:
    verification = cure.verification
    said = {diagnosis.findings[i].advice for i in cure.treats if 0 <= i < len(diagnosis.findings)}
    untried = verification.verdict is Verdict.NOT_VERIFIED and not verification.steps
    return untried and cure.remedy.kind is RemedyKind.CODE_FIX and cure.remedy.title in said


def _covers(cure: Prescription, advice: Prescription) -> bool:
    verified = cure.verification.verdict is Verdict.VERIFIED
    return verified and set(advice.treats) <= set(cure.treats)
