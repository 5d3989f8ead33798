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
from fp16doctor.prescribe.remedies.storage import parameters_remedy
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Verdict, Verification

MASTERS = PrecisionPolicy("fp32 parameters", stores_fp32=True)


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for all findings in the optimizer's step of 16-bit parameters."""
    positions = treated(case)
    if positions and case.bench is not None:
        yield Prescription(parameters_remedy(case), positions, _proof(case.bench))


def _proof(bench: Bench) -> Verification:
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
    no_better = "" if before is None or before.reason else attempt.no_better
    reason = after.reason or no_better
    return replace(
        proof,
        verdict=Verdict.REFUTED if reason else Verdict.VERIFIED,
        reason=reason,
        before={**proof.before, **(before.numbers if before is not None else {})},
        after={**proof.after, **after.numbers},
    )


def _steps(bench: Bench, policy: PrecisionPolicy) -> OptimizerStep:
    return optimizer_step(bench.tapes, bench.tapes, bench.window, policy)
