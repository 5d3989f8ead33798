"""Words what the script itself did under the recommended cure.

Must not know what else a report says.
"""

from __future__ import annotations

from fp16doctor.report import wording
from fp16doctor.schema.confirmation import Confirmation, ConfirmVerdict
from fp16doctor.schema.diagnosis import Diagnosis

_FINITE, _LOSS, _STEPS = "steps with a finite loss", "loss at the end", "steps"


def confirm_line(diagnosis: Diagnosis) -> str:
    """``confirmed: the script itself under the cure: 20 of 20 steps finite``; "" if not asked."""
    found = diagnosis.confirm
    if found is None:
        return ""
    if found.verdict is ConfirmVerdict.NOT_RUN:
        return f"not confirmed: the script was not run under the cure: {found.reason}"
    head = "confirmed" if found.verdict is ConfirmVerdict.HELD else "not confirmed"
    said = f"{head}: the script itself under the cure: {_course(found)}"
    return "; ".join(p for p in (said, found.reason) if p)


def proof_words(diagnosis: Diagnosis, proved: str) -> str:
    """``verified by replay of step 3`` and what the script itself showed, in a few words."""
    if diagnosis.confirm is None:
        return proved
    more = {
        ConfirmVerdict.HELD: ", confirmed by the script itself",
        ConfirmVerdict.NOT_HELD: " only",
        ConfirmVerdict.NOT_RUN: ", not confirmed by the script itself",
    }
    return proved + more[diagnosis.confirm.verdict]


def _course(found: Confirmation) -> str:
    after, before = found.after, found.before
    finite, steps = (int(after.get(k, 0)) for k in (_FINITE, _STEPS))
    parts = [f"{wording.count(finite)} of {wording.plural(steps, 'step')} finite"]
    if _LOSS in after:
        was = f" (as run {wording.loss(before[_LOSS])})" if _LOSS in before else ""
        parts.append(f"loss {wording.loss(after[_LOSS])}{was}")
    return ", ".join(parts)
