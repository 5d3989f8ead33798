"""Where candidates are tried: a few kept steps, their references, and a time budget.

Must not know remedies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import Judgement, judge
from fp16doctor.replay.trial import Trial, run_trial
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import Tape

SMALLEST_FACTOR = 2.0**-40  # a loss scale is lowered by no more than this in search of its place


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate on all kept steps."""

    policy: PrecisionPolicy
    judgements: tuple[Judgement, ...]
    trials: tuple[Trial, ...]
    failure: str = ""  # why it could not be tried

    @property
    def accepted(self) -> bool:
        """Accepted on every step."""
        return not self.failure and all(j.accepted for j in self.judgements)


class Bench:
    """Tries policies; nothing is tried once the budget is spent."""

    def __init__(self, tapes: tuple[Tape, ...], budget_s: float, tolerance: float = 1.0) -> None:
        self.tapes = tapes
        self._budget, self._tolerance = budget_s, tolerance
        self._spent = 0.0
        self._references: dict[int, Trial] = {}
        self._known: dict[PrecisionPolicy, Attempt] = {}

    @property
    def exhausted(self) -> bool:
        """The budget is spent."""
        return self._spent >= self._budget

    def as_run(self) -> Attempt:
        """Return the steps as they ran."""
        return self.attempt(AS_RUN)

    def reference(self, place: int) -> Trial:
        """Return the fp32 replay of one kept step."""
        if place not in self._references:
            self._references[place] = run_trial(self.tapes[place], FP32)
        return self._references[place]

    def attempt(self, policy: PrecisionPolicy) -> Attempt:
        """Try a policy on every kept step, at the loss scale where it settles."""
        known = self._known.get(policy)
        if known is not None:
            return known
        if self.exhausted:
            return Attempt(policy, (), (), failure="the time budget was spent")
        began = time.perf_counter()
        try:
            attempt = self._attempt(policy)
        except ReplayError as error:
            attempt = Attempt(policy, (), (), failure=error.message)
        self._spent += time.perf_counter() - began
        self._known[policy] = attempt
        return attempt

    def _attempt(self, policy: PrecisionPolicy) -> Attempt:
        judgements, trials = [], []
        for place, tape in enumerate(self.tapes):
            trial = run_trial(tape, policy)
            if policy.scale_factor == 1.0:
                trial = self._settled(tape, policy, trial)
            trials.append(trial)
            reference = self.reference(place)
            judgements.append(judge(tape, reference, trial, tolerance=self._tolerance))
            if not judgements[-1].accepted:
                break
        return Attempt(policy, tuple(judgements), tuple(trials))

    def _settled(self, tape: Tape, policy: PrecisionPolicy, trial: Trial) -> Trial:
        """Lower the scale as a GradScaler would while only backward is non-finite."""
        factor = 1.0
        while _only_backward(trial) and factor > SMALLEST_FACTOR and tape_has_scale(tape):
            factor /= 4
            trial = run_trial(tape, replace(policy, scale_factor=factor))
        return trial

    def verification(self, attempt: Attempt) -> Verification:
        """Return before → after of an attempt."""
        steps = tuple(t.step for t in self.tapes[: len(attempt.judgements)])
        if attempt.failure:
            return Verification(Verdict.NOT_VERIFIED, reason=attempt.failure)
        reason = next((j.reason for j in attempt.judgements if not j.accepted), "")
        verdict = Verdict.VERIFIED if attempt.accepted else Verdict.REFUTED
        return Verification(verdict, reason, _numbers(self.as_run()), _numbers(attempt), steps)


def tape_has_scale(tape: Tape) -> bool:
    """Tell whether the step's loss was multiplied by a GradScaler's scale."""
    return any("_amp_foreach_non_finite_check" in c.op for c in tape.ops)


def _only_backward(trial: Trial) -> bool:
    return not trial.nonfinite.get("loss") and bool(trial.nonfinite.get("gradients"))


def _numbers(attempt: Attempt) -> dict[str, float]:
    """Return the worst of each number over the steps."""
    out = {
        "non-finite elements": float(max((j.nonfinite for j in attempt.judgements), default=0)),
        "non-finite ops": float(max((t.nonfinite_ops for t in attempt.trials), default=0)),
    }
    errors = [j.gradient_error for j in attempt.judgements if j.gradient_error is not None]
    kept = [j.descent for j in attempt.judgements if j.descent is not None]
    if errors:
        out["gradient error"] = max(errors)
    if kept:
        out["descent kept"] = min(kept)
    out["gradient lost"] = max((j.lost for j in attempt.judgements), default=0.0)
    return out
