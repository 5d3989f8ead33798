"""Cures of something else in a run whose scaler is used wrongly as well.

The fp32 replay that a cure is judged by repeats the use: only the intended update tells.

Must not know how a cure is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.intended import UNINTENDED, verify
from fp16doctor.prescribe.search import policy_of
from fp16doctor.prescribe.treatable import misuses_scaler
from fp16doctor.schema.policy import BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict

_FORMATS = {"bf16": BF16, "fp32": FP32}


def held_to_intended(case: Case, found: Sequence[Prescription]) -> Iterator[Prescription]:
    """Yield the prescriptions; those that leave the update a wrong one are refuted."""
    misused = {i for i, f in case.demanding if misuses_scaler(f)}
    for prescription in found:
        policy = _policy(prescription.remedy)
        proof = prescription.verification
        beside = policy is not None and not misused & set(prescription.treats)
        if not (misused and beside and proof.verdict is Verdict.VERIFIED and case.bench):
            yield prescription
            continue
        assert policy is not None
        meant = verify(case.bench, lambda tape: tape, policy)
        if UNINTENDED in meant.reason:
            reason = f"with the loss scale used as it is, {meant.reason}"
            proof = replace(proof, verdict=Verdict.REFUTED, reason=reason)
        yield replace(prescription, verification=proof)


def _policy(remedy: Remedy) -> PrecisionPolicy | None:
    if remedy.kind is RemedyKind.FP32_KEEP:
        return policy_of(remedy.target)
    return _FORMATS.get(str(remedy.value)) if remedy.kind is RemedyKind.DTYPE else None
