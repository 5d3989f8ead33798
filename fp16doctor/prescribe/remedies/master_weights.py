"""Tries fp32 parameters, and with them fp32 optimizer state, where its 16-bit state goes wrong.

Tried is the whole step as autocast runs it: forward and backward in the run's 16-bit format, the
parameters, their gradients and the optimizer's state in fp32.

Must not know how updates are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.masters import treated
from fp16doctor.prescribe.optimizer_step import OptimizerStep, optimizer_step
from fp16doctor.prescribe.remedies.storage import CODES, parameters_remedy, proof_of
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Verdict, Verification

MASTERS = PrecisionPolicy("fp32 parameters", stores_fp32=True)


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for all findings in the optimizer's step of 16-bit parameters."""
    positions = treated(case)
    if positions and case.bench is not None:
        stored = [proof_of(case, f) for i, f in case.demanding if i in positions and _is_lost(f)]
        proof = next((p for p in stored if p.verdict is not Verdict.VERIFIED), None)
        proof = proof or _proof(case.bench, better=bool(stored))
        yield Prescription(parameters_remedy(case), positions, proof)


def _is_lost(finding: Finding) -> bool:
    return finding.fault is Fault.LOST_UPDATE and finding.code in CODES


def _proof(bench: Bench, *, better: bool) -> Verification:
    """``better``: fp32 storage takes updates that the run loses, whatever its steps are like."""
    attempt = bench.attempt(MASTERS)
    proof = bench.verification(attempt)
    if not attempt.sound:
        return proof
    try:
        with bench.timing():
            after = _steps(bench, MASTERS)
            before = _steps(bench, AS_RUN) if attempt.no_better else None
    except ReplayError as error:
        return replace(proof, verdict=Verdict.NOT_VERIFIED, reason=error.message)
    better = better or before is None or bool(before.reason)
    reason = after.reason or ("" if better else attempt.no_better)
    return replace(
        proof,
        verdict=Verdict.REFUTED if reason else Verdict.VERIFIED,
        reason=reason,
        before={**proof.before, **(before.numbers if before is not None else {})},
        after={**proof.after, **after.numbers},
    )


def _steps(bench: Bench, policy: PrecisionPolicy) -> OptimizerStep:
    return optimizer_step(bench.tapes, bench.tapes, bench.window, policy)
