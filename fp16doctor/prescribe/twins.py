"""Advice that was not tried beside the very same cure that was: only the proof is kept.

Must not know how a cure is found or ranked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fp16doctor.prescribe.ranking import rank
from fp16doctor.schema.prescription import Prescription, Recommendation, RemedyKind, Verdict

# How an advice begins, and the kind of remedy that is that very change. A change of code that was
# tried for a finding is the one that its advice names.
_SAME = {
    RemedyKind.CODE_FIX: "",
    RemedyKind.LOSS_SCALE: r"scale the loss|use a GradScaler",
    RemedyKind.FP32_KEEP: r"(compute|accumulate|divide|take|sum|cast|run|keep)\b[^,;]* in fp32",
    RemedyKind.STORAGE: r".*\bfp32\b",
}


def without_twins(
    found: Sequence[Prescription], answer: Recommendation
) -> tuple[tuple[Prescription, ...], Recommendation]:
    """Return the prescriptions without untried twins, and the answer pointing at what is left."""
    verified = [p for p in found if p.verification.verdict is Verdict.VERIFIED]
    left = [i for i, p in enumerate(found) if not _is_twin(p, verified)]
    left = by_preference(found, sorted({*left, *answer.prescriptions}))
    places = {old: new for new, old in enumerate(left)}
    chosen = tuple(places[i] for i in answer.prescriptions)
    return tuple(found[i] for i in left), replace(answer, prescriptions=chosen)


def by_preference(found: Sequence[Prescription], places: Sequence[int]) -> list[int]:
    """Return the places, verified ones as they are preferred: the next best behind the best."""
    verified = [i for i in places if found[i].verification.verdict is Verdict.VERIFIED]
    best = iter(sorted(verified, key=lambda i: rank(found[i])))
    return [next(best) if i in verified else i for i in places]


def _is_twin(untried: Prescription, verified: Sequence[Prescription]) -> bool:
    """Tell whether it is advice, and a verified cure of all that it treats does the same."""
    remedy = untried.remedy
    if untried.verification.verdict is not Verdict.NOT_VERIFIED or untried.verification.steps:
        return False
    if remedy.kind is not RemedyKind.CODE_FIX:
        return False
    return any(
        set(untried.treats) <= set(cure.treats) and _says(remedy.title, cure.remedy.kind)
        for cure in verified
    )


def _says(advice: str, kind: RemedyKind) -> bool:
    return kind in _SAME and re.match(_SAME[kind], advice) is not None
