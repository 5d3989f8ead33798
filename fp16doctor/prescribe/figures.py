"""What a trial's numbers are called in a verification.

Must not know how an attempt is made (``bench``).
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.prescribe.acceptance import Judgement
from fp16doctor.replay.trajectory import Course
from fp16doctor.replay.trial import Trial


def figures(
    judgements: Sequence[Judgement],
    trials: Sequence[Trial],
    scale: float | None,
    course: Course | None,
) -> dict[str, float]:
    """Return the worst of each number over the steps."""
    out = {
        "non-finite elements": float(max((j.nonfinite for j in judgements), default=0)),
        "non-finite ops": float(max((t.nonfinite_ops for t in trials), default=0)),
    }
    errors = [j.gradient_error for j in judgements if j.gradient_error is not None]
    kept = [j.descent for j in judgements if j.descent is not None]
    if errors:
        out["gradient error"] = max(errors)
    if kept:
        out["descent kept"] = min(kept)
    out["gradient lost"] = max((j.lost for j in judgements), default=0.0)
    if scale is not None:
        out["loss scale"] = scale
    if course is not None and course.losses:
        out[f"loss after {len(course.losses)} steps"] = course.losses[-1]
    return out
