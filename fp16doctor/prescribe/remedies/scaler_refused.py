"""Tries the formats that need no loss scale where a check of GradScaler's own ended the script.

A disabled scaler makes none of these checks (torch/amp/grad_scaler.py: its methods return first),
and an optimizer leaves out parameters without gradients. So what is left to show is that the step
up to the call computes without a scale what it is meant to.

Must not know how a step is edited or judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import Judgement, judge
from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.prescribe.case import NOT_TRIED, Case
from fp16doctor.prescribe.intended import NO_SCALE
from fp16doctor.prescribe.remedies.scaler_use import FORMATS, unscaled_remedy
from fp16doctor.prescribe.treatable import is_refused_by_scaler
from fp16doctor.replay.scaler_use import without_scaler
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.finding import SCALER_RAISED
from fp16doctor.schema.policy import FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Prescription, Verdict, Verification
from fp16doctor.schema.tape import Tape


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription a format, where the scaler raised."""
    treats = tuple(i for i, f in case.demanding if is_refused_by_scaler(f))
    if treats:
        for name, policy, change in FORMATS:
            remedy = unscaled_remedy(name, change, case.device)
            yield Prescription(remedy, treats, _proof(case.bench, policy))


def _proof(bench: Bench | None, policy: PrecisionPolicy) -> Verification:
    """Judge the last kept step, the one that ended in the call, without a scale."""
    if bench is None or not bench.tapes:
        return Verification(Verdict.NOT_VERIFIED, reason=NOT_TRIED)
    if bench.exhausted:
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    tape = max(bench.tapes, key=lambda t: t.step)
    plain = without_scaler(tape)
    if plain is None:
        return Verification(Verdict.NOT_VERIFIED, reason=NO_SCALE)
    try:
        with bench.timing():
            found = judge(plain, run_trial(plain, FP32), run_trial(plain, policy))
    except ReplayError as error:
        return Verification(Verdict.NOT_VERIFIED, reason=error.message)
    return _verification(found, tape)


def _verification(found: Judgement, tape: Tape) -> Verification:
    error = found.gradient_error
    return Verification(
        Verdict.VERIFIED if found.accepted else Verdict.REFUTED,
        found.reason
        or f"replayed up to the call that raised at step {tape.step}; what follows it never ran",
        {SCALER_RAISED: 1.0},
        {SCALER_RAISED: 0.0, **({} if error is None else {"gradient error": error})},
        (tape.step,),
    )
