"""Where candidates are tried: a few kept steps, their references, and a time budget.

Must not know remedies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import (
    SHORTEST_COURSE,
    Judgement,
    course_reason,
    gradient_error,
    judge,
)
from fp16doctor.replay.trajectory import Course, follow
from fp16doctor.replay.trial import Trial, run_disturbed, run_trial
from fp16doctor.schema.policy import AS_RUN, BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import Tape, refs_in

SMALLEST_FACTOR = 2.0**-40  # a loss scale is lowered by no more than this in search of its place


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate on all kept steps."""

    policy: PrecisionPolicy
    judgements: tuple[Judgement, ...]
    trials: tuple[Trial, ...]
    failure: str = ""  # why it could not be tried
    course: Course | None = None  # consecutive steps, where every single one was accepted
    course_reason: str = ""  # why the course is not accepted

    @property
    def accepted(self) -> bool:
        """Accepted on every step, and over the consecutive ones."""
        single = not self.failure and all(j.accepted for j in self.judgements)
        return single and not self.course_reason


class Bench:
    """Tries policies; nothing is tried once the budget is spent."""

    def __init__(
        self,
        tapes: tuple[Tape, ...],
        budget_s: float,
        tolerance: float = 1.0,
        window: tuple[Tape, ...] = (),
    ) -> None:
        self.tapes = tapes
        self.window = window  # consecutive steps
        self._reference_course: Course | None = None
        self._floors: dict[tuple[int, str], float] = {}
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
            floor = self.floor(place, policy)
            judgements.append(judge(tape, reference, trial, tolerance=self._tolerance, floor=floor))
            if not judgements[-1].accepted:
                break
        attempt = Attempt(policy, tuple(judgements), tuple(trials))
        return self._with_course(attempt) if attempt.accepted else attempt

    def floor(self, place: int, policy: PrecisionPolicy) -> float:
        """Return the gradient error of a step by rounding noise of the policy's format."""
        if policy == FP32:
            return 0.0
        name = "bf16" if policy.widen == BF16.widen else format_of(self.tapes[place])
        if (place, name) not in self._floors:
            disturbed = run_disturbed(self.tapes[place], name)
            error = gradient_error(self.reference(place), disturbed)
            self._floors[place, name] = error or 0.0
        return self._floors[place, name]

    def _with_course(self, attempt: Attempt) -> Attempt:
        """Follow the candidate over the consecutive steps."""
        if len(self.window) < SHORTEST_COURSE:
            if any(j.ill_conditioned for j in attempt.judgements):
                return replace(attempt, course_reason="the step is ill-conditioned, and too few "
                               "consecutive ones were kept")  # fmt: skip
            return attempt
        reference = self.reference_course()
        course = follow(self.window, attempt.policy, reference)
        return replace(attempt, course=course, course_reason=course_reason(reference, course))

    def reference_course(self) -> Course:
        """Return the consecutive steps in fp32."""
        if self._reference_course is None:
            self._reference_course = follow(self.window, FP32)
        return self._reference_course

    def _settled(self, tape: Tape, policy: PrecisionPolicy, trial: Trial) -> Trial:
        """Lower the scale as a GradScaler would while only backward is non-finite."""
        factor = 1.0
        while _only_backward(trial) and factor > SMALLEST_FACTOR and tape_has_scale(tape):
            factor /= 4
            trial = run_trial(tape, replace(policy, scale_factor=factor))
        return trial

    def courses(self) -> dict[str, tuple[float, ...]]:
        """Return the losses over the consecutive steps: fp32 and every candidate followed."""
        if self._reference_course is None:
            return {}
        found = {
            "steps": tuple(map(float, self._reference_course.steps)),
            "fp32": tuple(self._reference_course.losses),
        }
        for attempt in self._known.values():
            if attempt.course is not None and attempt.policy != FP32:
                found.setdefault(_course_name(attempt.policy), tuple(attempt.course.losses))
        return found

    def verification(self, attempt: Attempt) -> Verification:
        """Return before → after of an attempt."""
        steps = tuple(t.step for t in self.tapes[: len(attempt.judgements)])
        if attempt.failure:
            return Verification(Verdict.NOT_VERIFIED, reason=attempt.failure)
        reason = next((j.reason for j in attempt.judgements if not j.accepted), "")
        reason = reason or attempt.course_reason
        verdict = Verdict.VERIFIED if attempt.accepted else Verdict.REFUTED
        return Verification(verdict, reason, _numbers(self.as_run()), _numbers(attempt), steps)


def _course_name(policy: PrecisionPolicy) -> str:
    places = ", ".join(r.pattern for r in policy.keep)
    return f"fp32 for {places}" if places else policy.name


def format_of(tape: Tape) -> str:
    """Return the 16-bit format that most of a step's results have."""
    names = [r.dtype for c in tape.ops for r in refs_in(c.outputs)]
    return "bf16" if names.count("bfloat16") > names.count("float16") else "fp16"


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
    if attempt.course is not None and attempt.course.losses:
        out[f"loss after {len(attempt.course.losses)} steps"] = attempt.course.losses[-1]
    return out
