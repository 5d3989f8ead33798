"""Which of several verified cures is preferred.

Must not know findings.
"""

from __future__ import annotations

from fp16doctor.prescribe.remedies.keep_list import CHEAP_FLOPS
from fp16doctor.prescribe.stored import REALISED, REALISED_FRACTION
from fp16doctor.schema.prescription import Prescription, RemedyKind


def rank(prescription: Prescription) -> tuple[int, bool, float, float]:
    """Cheapest first; what needs no cast by hand in front of what does; then by gradient error."""
    remedy = prescription.remedy
    flops = remedy.cost.get("flops_share", 0.0)
    error = prescription.verification.after.get("gradient error", 0.0)
    order = {
        RemedyKind.STORAGE: 0,
        RemedyKind.LOSS_SCALE: 1,
        RemedyKind.FP32_KEEP: 2 if flops <= CHEAP_FLOPS else 4,
        RemedyKind.DTYPE: _dtype(prescription),
        RemedyKind.FIXUP_INIT: 5,
        RemedyKind.CODE_FIX: 5,
    }
    return order[remedy.kind], bool(remedy.casts), flops, error


def _dtype(prescription: Prescription) -> int:
    """Behind an edit of the code where weights stored in it lose their updates; fp32 is last."""
    if prescription.remedy.value == "fp32":
        return 7
    taken = prescription.verification.after.get(REALISED_FRACTION, 1.0)
    return 3 if taken >= REALISED else 6
