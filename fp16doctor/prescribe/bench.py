"""Where candidates are tried: a few kept steps, their references, and a time budget.

Must not know remedies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import (
    BEYOND_ROUNDING,
    FAULT_NOT_SHOWN,
    SHORTEST_COURSE,
    Judgement,
    course_reason,
    gradient_error,
    improvement_reason,
    judge,
    noise_words,
)
from fp16doctor.prescribe.attempt import Attempt
from fp16doctor.prescribe.hidden import hidden_births, hidden_words
from fp16doctor.prescribe.naming import course_name, family
from fp16doctor.prescribe.remaining import Place, remaining
from fp16doctor.prescribe.settling import settled
from fp16doctor.prescribe.steps import format_of
from fp16doctor.prescribe.time_budget import TimeBudget
from fp16doctor.replay.scales import at_scale, scale_of, scaled_at_most
from fp16doctor.replay.trajectory import Course, follow
from fp16doctor.replay.trial import Trial, run_disturbed, run_trial
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import AS_RUN, BF16, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import Tape

BUDGET_SPENT = "the time budget was spent"
TOO_FEW_STEPS = "the step is ill-conditioned, and too few consecutive ones were kept"
_Key = tuple[PrecisionPolicy, float | None]  # and the loss scale it is tried at


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
        self.faults: frozenset[Place] = frozenset()  # of the findings: they must be gone
        self.of_rounding = False  # what is to be cured is an error of rounding
        self._reference_course: Course | None = None
        self._floors: dict[tuple[int, str], float] = {}
        self.time, self._tolerance = TimeBudget(budget_s), tolerance
        self._references: dict[int, Trial] = {}
        self._known: dict[_Key, Attempt] = {}
        self._as_run: Attempt | None = None
        self.told: Callable[[PrecisionPolicy], None] = lambda policy: None  # before each trial

    @property
    def exhausted(self) -> bool:
        """The budget is spent."""
        return self.time.over

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are not spent."""
        return self.time.left_s

    def timing(self) -> AbstractContextManager[None]:
        """Count what is done inside against the budget."""
        return self.time.timing()

    def as_settled(self) -> Attempt:
        """Return the steps as they ran, at the loss scale where a scaler would settle."""
        if self.exhausted:
            return Attempt(AS_RUN, (), (), failure=BUDGET_SPENT)
        return self._timed(AS_RUN, lambda: self._attempt(AS_RUN, settles=True))

    def as_run(self) -> Attempt:
        """Return the steps as they ran."""
        if self._as_run is None:
            self._as_run = self._timed(AS_RUN, lambda: self._attempt(AS_RUN, settles=False))
        return self._as_run

    def reference(self, place: int) -> Trial:
        """Return the fp32 replay of one kept step."""
        if place not in self._references:
            self._references[place] = run_trial(self.tapes[place], FP32)
        return self._references[place]

    def attempt(self, policy: PrecisionPolicy) -> Attempt:
        """Try a policy on every kept step, at the loss scale where a scaler would settle."""
        return self._try((policy, None), lambda: self._attempt(policy, settles=True))

    def attempt_scale(self, scale: float) -> Attempt:
        """Try a loss scale on every kept step, whatever scale it ran with."""
        return self.attempt_at(PrecisionPolicy(f"loss scale {scale:.10g}"), scale)

    def attempt_at(self, policy: PrecisionPolicy, scale: float) -> Attempt:
        """Try a policy together with a loss scale."""
        return self._try((policy, scale), lambda: self._attempt(policy, scale=scale))

    @property
    def untried(self) -> tuple[str, ...]:
        """What was left when the budget ended: ``fp32``, ``further keep-lists``."""
        begun = {family(a.policy) for a in self.tried if a.failure != BUDGET_SPENT}
        return tuple(f"further {n}s" if n in begun else n for n in self.time.untried)

    @property
    def tried(self) -> tuple[Attempt, ...]:
        """Every candidate so far."""
        return tuple(self._known.values())

    def hidden(self, attempt: Attempt) -> tuple[OpSite, ...]:
        """Return what is born in a refused attempt and was not in the run."""
        if attempt.accepted or not attempt.trials:
            return ()
        references = [self.reference(place) for place in range(len(attempt.trials))]
        return hidden_births(self.as_run().trials, references, attempt.trials)

    def finite_at(self, scale: float) -> bool:
        """Tell whether nothing is non-finite on any kept step at a loss scale.

        False as well where it could not be tried (``exhausted``).
        """
        policy = PrecisionPolicy(f"loss scale {scale:.10g}")
        found = self._try((policy, -scale), lambda: self._unjudged(policy, scale))
        return not found.failure and all(t.finite for t in found.trials)

    def _try(
        self, key: tuple[PrecisionPolicy, float | None], run: Callable[[], Attempt]
    ) -> Attempt:
        if key not in self._known:
            if self.exhausted:
                self.time.leave(family(key[0]))
                return Attempt(key[0], (), (), failure=BUDGET_SPENT)
            self._known[key] = self._beside_run(self._timed(key[0], run))
            if self._known[key].failure == BUDGET_SPENT:
                self.time.leave(family(key[0]))
        return self._known[key]

    def _beside_run(self, attempt: Attempt) -> Attempt:
        """Hold an accepted candidate against a run that would be accepted as well."""
        if not attempt.judgements or not attempt.accepted or not self.as_run().accepted:
            return attempt
        before = self.as_run().gradient_error
        floor = max(self.floor(place, AS_RUN) for place in range(len(self.tapes)))
        if self.of_rounding and (before or 0.0) >= BEYOND_ROUNDING:
            floor = 0.0  # the fault is that these steps are as sensitive
        reason = improvement_reason(
            before,
            attempt.gradient_error,
            floor,
            in_part=bool(attempt.policy.keep) and not attempt.policy.widen,
        )
        return replace(attempt, no_better=reason)

    def _timed(self, policy: PrecisionPolicy, run: Callable[[], Attempt]) -> Attempt:
        self.told(policy)
        try:
            with self.timing():
                return run()
        except ReplayError as error:
            return Attempt(policy, (), (), failure=error.message)

    def _attempt(
        self, policy: PrecisionPolicy, *, settles: bool = False, scale: float | None = None
    ) -> Attempt:
        """Stop at the first step that refuses it."""
        judgements, trials = [], []
        ceiling: float | None = None
        for place, tape in enumerate(self.tapes):
            self._go_on(policy, begun=place > 0)
            mine = policy if scale is None else at_scale(policy, tape, scale)
            trial = run_trial(tape, scaled_at_most(mine, tape, ceiling))
            if settles:
                trial = settled(tape, mine, trial)
                if trial.policy.scale_factor < 1:
                    ceiling = scale_of(tape) * trial.policy.scale_factor
            trials.append(trial)
            floor, reference = self.floor(place, policy), self.reference(place)
            found = judge(tape, reference, trial, tolerance=self._tolerance, floor=floor)
            judgements.append(self._without_fault(found, trial, reference))
            if not judgements[-1].accepted:
                break
        attempt = Attempt(policy, tuple(judgements), tuple(trials), scale=scale or ceiling)
        if not attempt.accepted:
            return attempt
        self._go_on(policy, begun=True)
        return self._with_course(attempt, fixed=scale is not None)

    def _without_fault(self, judgement: Judgement, trial: Trial, reference: Trial) -> Judgement:
        still = remaining(trial, reference, self.faults) if judgement.accepted else ""
        return replace(judgement, accepted=False, reason=still) if still else judgement

    def _go_on(self, policy: PrecisionPolicy, *, begun: bool) -> None:
        """Give a candidate up where time runs out amid its steps; how the run fared is needed."""
        if begun and policy != AS_RUN and self.exhausted:
            raise ReplayError(BUDGET_SPENT, "budget-spent")

    def _unjudged(self, policy: PrecisionPolicy, scale: float) -> Attempt:
        trials = []
        for tape in self.tapes:
            trials.append(run_trial(tape, at_scale(policy, tape, scale)))
            if not trials[-1].finite:
                break
        return Attempt(policy, (), tuple(trials), scale=scale)

    def floor(self, place: int, policy: PrecisionPolicy) -> float:
        """Return the gradient error of a step by rounding noise of the policy's format."""
        if policy == FP32:
            return 0.0
        name = "bf16" if policy.widen == BF16.widen else format_of(self.tapes[place])
        if (place, name) not in self._floors:
            self._floors[place, name] = self._noise(place, name) or 0.0
        return self._floors[place, name]

    def _noise(self, place: int, name: str) -> float | None:
        try:
            disturbed = run_disturbed(self.tapes[place], name)
        except ReplayError:  # a disturbed probability above 1 has no cross entropy
            return None
        return gradient_error(self.reference(place), disturbed)

    def _with_course(self, attempt: Attempt, *, fixed: bool) -> Attempt:
        """Follow the candidate over the consecutive steps, at the loss scale it is fit at."""
        if len(self.window) < SHORTEST_COURSE:
            ill = any(j.ill_conditioned for j in attempt.judgements)
            return replace(attempt, course_reason=TOO_FEW_STEPS) if ill else attempt
        policy, scale, reference = attempt.policy, attempt.scale, self.reference_course()

        def policy_of(tape: Tape) -> PrecisionPolicy:
            if fixed and scale is not None:
                return at_scale(policy, tape, scale)
            return scaled_at_most(policy, tape, scale)

        course = follow(self.window, policy, reference, policy_of)
        return replace(attempt, course=course, course_reason=course_reason(reference, course))

    def reference_course(self) -> Course:
        """Return the consecutive steps in fp32."""
        if self._reference_course is None:
            self._reference_course = follow(self.window, FP32)
        return self._reference_course

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
                found.setdefault(course_name(attempt.policy), tuple(attempt.course.losses))
        return found

    def verification(self, attempt: Attempt) -> Verification:
        """Return before → after of an attempt."""
        steps = tuple(sorted(t.step for t in self.tapes[: len(attempt.judgements)]))
        if attempt.failure:
            return Verification(Verdict.NOT_VERIFIED, reason=attempt.failure)
        reason = next((j.reason for j in attempt.judgements if not j.accepted), "")
        reason = reason or attempt.course_reason or attempt.no_better
        if attempt.accepted and attempt.course is not None:
            reason = noise_words(attempt.judgements, len(attempt.course.losses))
        reason = "; ".join(filter(None, (reason, hidden_words(self.hidden(attempt)))))
        verdict = Verdict.VERIFIED if attempt.accepted else Verdict.REFUTED
        if reason.startswith(FAULT_NOT_SHOWN):
            verdict = Verdict.NOT_VERIFIED
        losses = tuple(attempt.course.losses) if attempt.course is not None else ()
        before, after = self.as_run().figures, attempt.figures
        return Verification(verdict, reason, before, after, steps, losses=losses)
