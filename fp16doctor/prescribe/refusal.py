"""Where a call that raised and ended the script is tried again: the step up to it, and the call.

What follows the call was never run, so that nothing is known of it: a proof says so.

Must not know remedies.
"""

from __future__ import annotations

from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.treatable import is_refusal
from fp16doctor.replay.refused import RefusedTrial, run_refused
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import OpCall, Tape


def refused_finding(case: Case) -> tuple[int, Finding, Tape] | None:
    """Return the finding of the refused call, its position, and the step up to the call.

    None where the exception was another one, or where the replay as run does not raise it.
    """
    if case.refused is None:
        return None
    last = case.refused.ops[-1].site
    for position, finding in case.demanding:
        site = finding.site
        if site is None or not is_refusal(finding):
            continue
        if (site.op, site.source, site.step) == (last.op, last.source, last.step):
            again = run_refused(case.refused, AS_RUN)
            return (position, finding, case.refused) if again.raised else None
    return None


def refused_call(tape: Tape) -> OpCall:
    """Return the call that raised."""
    return tape.ops[-1]


def proof_of(tape: Tape, policy: PrecisionPolicy) -> Verification:
    """Return what replaying the step up to the call that raised, and the call, shows."""
    trial = run_refused(tape, policy)
    if trial.failure:
        return Verification(Verdict.NOT_VERIFIED, reason=trial.failure)
    accepted = not (trial.raised or trial.births or trial.nonfinite)
    return Verification(
        Verdict.VERIFIED if accepted else Verdict.REFUTED,
        reason=_reason(tape, trial),
        before={"calls that raise": 1.0},
        after={"calls that raise": float(bool(trial.raised))},
        steps=(tape.step,),
    )


def _reason(tape: Tape, trial: RefusedTrial) -> str:
    if trial.raised:
        return trial.raised
    if trial.births:
        return "an op in front of the call makes inf or NaN of finite inputs"
    if trial.nonfinite:
        return "the call runs, and its result is not finite"
    return f"replayed up to the op that raised at step {tape.step}; what follows it never ran"
