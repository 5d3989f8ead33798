"""What "verified" stands for, in the numbers of the recommended cure.

Must not know how a cure was tried, nor the other lines of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fp16doctor.report import wording
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import Prescription, RemedyKind, Verdict, Verification

_BY_STEPS = re.compile(r"loss after (\d+) steps?")
_HALF = 0.5  # an error that is less than halved is not what the cure is about
_MOST = 2  # numbers: the table of cures has all of them


def proved(diagnosis: Diagnosis) -> str:
    """``verified: with the cure steps 0 and 1 have no inf or NaN (57 286 elements as run); …``.

    "" where the recommended cure was not verified by a replay.
    """
    cures = [diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions]
    if not cures or any(c.verification.verdict is not Verdict.VERIFIED for c in cures):
        return ""
    proof = cures[0].verification
    if not proof.steps:
        return ""
    numbers = list(_improved(proof))[:_MOST] or ["the fault is gone"]
    where = f"with the cure, in {wording.steps_named(proof.steps)}"
    said = f"verified: {where}, {wording.listed(numbers)}"
    return "; ".join(p for p in (said, _course(diagnosis, cures[0])) if p)


def _improved(proof: Verification) -> Iterator[str]:
    """The quantities that were off in the run and are not under the cure, the plainest first."""
    old, new = proof.before, proof.after
    if old.get("calls that raise") and not new.get("calls that raise"):
        yield "no call raises"
    if old.get("non-finite elements") and not new.get("non-finite elements"):
        born = wording.plural(int(old["non-finite elements"]), "element")
        yield f"nothing is inf or NaN ({born} as run)"
    elif old.get("non-finite ops") and not new.get("non-finite ops"):
        born = wording.plural(int(old["non-finite ops"]), "op")
        yield f"nothing is inf or NaN ({born} as run)"
    if _less(proof, "gradient error"):
        now, was = (wording.whole_share(v["gradient error"]) for v in (new, old))
        yield f"the gradients are {now} off those of fp32 ({was} as run)"
    elif not old.get("non-finite elements") and _less(proof, "gradient lost"):
        now, was = (wording.whole_share(v["gradient lost"]) for v in (new, old))
        yield f"of no gradient more than {now} becomes zero ({was} as run)"
    if old.get("realised fraction") is not None and "realised fraction" in new:
        now, was = (wording.whole_share(v["realised fraction"]) for v in (new, old))
        yield f"{now} of the update that is meant is made ({was} as run)"


def _less(proof: Verification, key: str) -> bool:
    old, new = proof.before.get(key), proof.after.get(key)
    return old is not None and new is not None and old >= _HALF and new <= _HALF * old


def _course(diagnosis: Diagnosis, cure: Prescription) -> str:
    """``loss 1.6583 after 10 steps (fp32: 1.6576)``; fp32 has the run's own initial weights."""
    for key, loss in cure.verification.after.items():
        if match := _BY_STEPS.fullmatch(key):
            course = diagnosis.trajectory.get("fp32", ())
            n, same = int(match[1]), cure.remedy.kind is not RemedyKind.FIXUP_INIT
            what = "fp32" if same else "fp32 with the weights as they are"
            known = len(course) >= n
            reference = f" ({what}: {wording.loss(course[n - 1])})" if known else ""
            return f"loss {wording.loss(loss)} after {wording.plural(n, 'step')}{reference}"
    return ""
