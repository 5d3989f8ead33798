"""Which of several verified cures is preferred.

Must not know findings.
"""

from __future__ import annotations

from fp16doctor.prescribe.acceptance import NOISE_DECIDES
from fp16doctor.prescribe.edit import is_edit
from fp16doctor.prescribe.remedies.keep_list import CHEAP_FLOPS
from fp16doctor.prescribe.stored import REALISED, REALISED_FRACTION
from fp16doctor.schema.prescription import Prescription, RemedyKind

MODEST_FLOPS = 0.05  # up to this share of the work two keep-lists cost the same

_NONFINITE = "non-finite elements"  # what a trial of a step counts, of lost updates none does

Rank = tuple[int, bool, bool, float, float]


def rank(prescription: Prescription) -> Rank:
    """Cheapest first; what needs no cast by hand in front of what does; then by gradient error.

    Of two keep-lists that cost little, an edit of the script's own lines is preferred to code.

    An edit of the faulty line costs nothing and comes before another format; one that computes
    something else (its proof is bound to that) behind a keep-list, which does not.
    """
    remedy = prescription.remedy
    flops = remedy.cost.get("flops_share", 0.0)
    error = prescription.verification.after.get("gradient error", 0.0)
    order = {
        RemedyKind.STORAGE: 5 if _NONFINITE in prescription.verification.after else 0,
        RemedyKind.LOSS_SCALE: 1,
        RemedyKind.CODE_FIX: 4 if _is_bound(prescription) else 2,
        RemedyKind.FP32_KEEP: 3 if flops <= CHEAP_FLOPS else 7,
        RemedyKind.DTYPE: _dtype(prescription),
        RemedyKind.FIXUP_INIT: 8,
    }
    edit = remedy.kind is not RemedyKind.FP32_KEEP or is_edit(remedy.change)
    return order[remedy.kind], bool(remedy.casts), not edit or flops > MODEST_FLOPS, flops, error


def _is_bound(prescription: Prescription) -> bool:
    """Tell whether a proof holds for something else; that steps are ill-conditioned is no bound."""
    parts = prescription.verification.reason.split("; ")
    return any(part and not part.startswith(NOISE_DECIDES) for part in parts)


def _dtype(prescription: Prescription) -> int:
    """Behind all else where weights stored in it lose their updates; fp32 is last."""
    if prescription.remedy.value == "fp32":
        return 10
    taken = prescription.verification.after.get(REALISED_FRACTION, 1.0)
    return 6 if taken >= REALISED else 9
