"""When a candidate counts as verified: every criterion, with its number, in this one place.

On each examined step, at the settled loss scale, against the fp32 replay of the same step:

1. nothing is non-finite in loss, gradients, parameters and buffers;
2. no parameter loses half of its gradient to zeros that do not belong there;
3. *descent*: a small step against the candidate's gradient lowers the fp32 loss by at least 95 %
   of what the same step against the reference's gradient does. An ill-conditioned step, one whose
   fp32 gradient turns over when its values change in the format's last place, cannot tell: there
   the trajectory decides alone.

4. *improvement*: where the run itself meets all of this, its gradient error is more than that of
   rounding noise, and it is at least halved; or a keep-list takes three quarters of it away.
   Where rounding is the fault itself (digits that cancel, integers that collide) noise does the
   same, and an error beyond that of sound steps is enough.

Over the run of consecutive steps, everything carried along:

5. *trajectory*: finite as long as the fp32 one, and at its end no higher than that by more than a
   tenth of what fp32 gained (and a fiftieth of the loss).

Must not know how candidates are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp16doctor.errors import ReplayError
from fp16doctor.replay.parameters import parameter_values
from fp16doctor.replay.trajectory import Course
from fp16doctor.replay.trial import Trial, loss_at
from fp16doctor.schema.spelling import number
from fp16doctor.schema.tape import Tape

DESCENT_KEPT = 0.95  # share of the reference's decrease
STEP_SIZE = 0.01  # predicted relative decrease of the loss for the descent test
ILL_CONDITIONED = 0.1  # gradient error by rounding noise from which a step cannot tell
FLOOR_SPREAD = 4.0  # rounding is not independent noise: an error up to this times the floor
LOSS_ALONE = 0.02  # relative error of a loss whose gradient was never computed
SHORTEST_COURSE = 4  # consecutive steps that say something
COURSE_GAIN = 0.1  # share of the fp32 gain that a candidate may miss
COURSE_LOSS = 0.02  # share of the loss that two formats may differ by
BEYOND_ROUNDING = 0.05  # gradient error that the rounding of a sound step does not reach
IMPROVEMENT = 0.5  # of the run's gradient error that may remain, where nothing else was wrong
FAULT_NOT_SHOWN = "the replayed steps do not show the fault"
NOISE_DECIDES = "rounding noise alone moves the gradients of"  # begins the bound of such a proof
LOST_TENSOR = 0.5  # share of one parameter's Σ|g| that may not be lost


# The numbers above, as the diagnosis carries them.
CRITERIA = {
    "non-finite elements allowed": 0.0,
    "descent kept": DESCENT_KEPT,
    "step size of the descent": STEP_SIZE,
    "gradient error that may remain": IMPROVEMENT,
    "gradient of one parameter lost": LOST_TENSOR,
    "trajectory: fp32 gain missed": COURSE_GAIN,
    "trajectory: loss above fp32": COURSE_LOSS,
    "ill-conditioned from": ILL_CONDITIONED,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One candidate on one step."""

    accepted: bool
    reason: str  # why not; "" where accepted
    nonfinite: int  # elements in all sinks
    gradient_error: float | None  # ‖g − gref‖ / ‖gref‖
    descent: float | None  # share of the reference's decrease; None where it does not descend
    lost: float  # largest share of one parameter's gradient that is lost
    loss: float | None
    ill_conditioned: bool = False  # the step alone cannot tell
    floor: float = 0.0  # gradient error that rounding noise alone gives on the step


def judge(
    tape: Tape, reference: Trial, candidate: Trial, *, tolerance: float = 1.0, floor: float = 0.0
) -> Judgement:
    """Apply all criteria; ``tolerance`` multiplies what the descent may miss.

    ``floor`` is the gradient error that rounding noise alone gives on this step.
    """
    bad = sum(candidate.nonfinite.values())
    error, lost = gradient_error(reference, candidate), largest_loss(reference, candidate)
    if bad or not reference.finite:
        where = ", ".join(k for k, n in candidate.nonfinite.items() if n)
        reason = f"non-finite values in {where}" if bad else "the fp32 replay is not finite either"
        return Judgement(False, reason, bad, error, None, lost, candidate.loss)
    if not reference.gradients:
        return _by_loss_alone(reference, candidate)
    if lost >= LOST_TENSOR:
        reason = f"{100 * lost:.3g} % of a parameter's gradient is lost"
        return Judgement(False, reason, 0, error, None, lost, candidate.loss)
    if is_ill_conditioned(error, floor):
        return Judgement(
            True, "", 0, error, None, lost, candidate.loss, ill_conditioned=True, floor=floor
        )
    kept = descent(tape, reference, candidate)
    short = kept is not None and kept < 1 - tolerance * (1 - DESCENT_KEPT)
    reason = f"a step keeps {100 * (kept or 0):.3g} % of the fp32 descent" if short else ""
    return Judgement(not short, reason, 0, error, kept, lost, candidate.loss)


def _by_loss_alone(reference: Trial, candidate: Trial) -> Judgement:
    """Judge a step that ended before backward: its loss must be that of the fp32 replay."""
    if reference.loss is None or candidate.loss is None:
        return Judgement(False, "the step holds no loss", 0, None, None, 0.0, candidate.loss)
    off = abs(candidate.loss - reference.loss)
    near = off <= LOSS_ALONE * max(abs(reference.loss), abs(candidate.loss))
    reason = "" if near else f"the loss is {candidate.loss:.4g}, in fp32 {reference.loss:.4g}"
    return Judgement(near, reason, 0, None, None, 0.0, candidate.loss)


def is_ill_conditioned(error: float | None, floor: float) -> bool:
    """Tell whether a step's gradient error is no more than its own sensitivity to rounding."""
    return error is not None and floor >= ILL_CONDITIONED and error <= FLOOR_SPREAD * floor


def noise_words(judgements: Sequence[Judgement], n_steps: int) -> str:
    """Return why a large gradient error is accepted on ill-conditioned steps, "" for none."""
    ill = [j for j in judgements if j.accepted and j.ill_conditioned]
    if not ill:
        return ""
    worst = max(ill, key=lambda j: j.gradient_error or 0.0)
    return (
        f"{NOISE_DECIDES} {'a step' if len(ill) == 1 else f'{len(ill)} steps'} by up to "
        f"{number(worst.floor)}, so that an error of {number(worst.gradient_error or 0.0)} there "
        f"tells nothing and the losses of {n_steps} consecutive steps decide"
    )


def improvement_reason(
    before: float | None, after: float | None, floor: float = 0.0, *, in_part: bool = False
) -> str:
    """Return why a candidate is no better than a run that meets the criteria too, "" if it is.

    ``before`` and ``after`` are the gradient errors of the run and of the candidate, ``floor`` is
    the one that rounding noise alone gives. ``in_part``: only a part of the step was made wider;
    if that takes most of the error away, it is the part that makes it, noise or not.
    """
    if before is None or after is None:
        return "the run itself meets the criteria, and there is no gradient to tell them apart"
    if before <= FLOOR_SPREAD * floor and not (in_part and FLOOR_SPREAD * after <= before):
        return f"{FAULT_NOT_SHOWN}: the run's own gradient error, {before:.3g}, is rounding's"
    if after <= IMPROVEMENT * before:
        return ""
    return f"no better than the run itself: gradient error {after:.3g}, as run {before:.3g}"


def course_reason(reference: Course, course: Course) -> str:
    """Return why a trajectory is not accepted, "" where it is."""
    if reference.first_nonfinite is not None:
        return f"the fp32 trajectory is not finite either, from step {reference.first_nonfinite} on"
    if course.first_nonfinite is not None:
        return f"the trajectory is not finite from step {course.first_nonfinite} on"
    shared = min(len(course.losses), len(reference.losses))
    if course.failure or shared < SHORTEST_COURSE:
        return ""  # it could not be followed: nothing is known beyond the single steps
    end, wanted = _tail(course.losses[:shared]), _tail(reference.losses[:shared])
    gained = abs(reference.losses[0] - wanted)
    if end <= wanted + COURSE_GAIN * gained + COURSE_LOSS * abs(wanted):
        return ""
    return f"after {shared} steps the loss is {end:.4g}, in fp32 {wanted:.4g}"


def _tail(losses: list[float]) -> float:
    """Return the mean of the last third: single batches scatter."""
    last = losses[-max(len(losses) // 3, 1) :]
    return sum(last) / len(last)


def gradient_error(reference: Trial, candidate: Trial) -> float | None:
    """Return ‖g − gref‖ / ‖gref‖ over all parameters, None where it is not defined."""
    error2 = norm2 = 0.0
    for name, wanted in reference.gradients.items():
        got = candidate.gradients.get(name)
        if got is None:
            continue
        error2 += float(((got.double() - wanted.double()) ** 2).sum())
        norm2 += float((wanted.double() ** 2).sum())
    ratio = (error2 / norm2) ** 0.5 if norm2 > 0 else None
    return ratio if ratio is not None and ratio - ratio == 0 else None


def largest_loss(reference: Trial, candidate: Trial) -> float:
    """Return the largest share of one parameter's Σ|g| at elements that became zero."""
    largest = 0.0
    total = sum(float(g.double().abs().sum()) for g in reference.gradients.values())
    for name, wanted in reference.gradients.items():
        got = candidate.gradients.get(name)
        mass = float(wanted.double().abs().sum())
        if got is None or mass <= NEGLIGIBLE * total:
            continue
        gone = (got == 0) & (wanted != 0)
        largest = max(largest, float(wanted[gone].double().abs().sum()) / mass)
    return largest


# A tensor with less than this share of all gradient mass may be zero but for rounding.
NEGLIGIBLE = 1e-6


def descent(tape: Tape, reference: Trial, candidate: Trial) -> float | None:
    """Return the candidate's share of the decrease that a reference step makes, in fp32.

    Both steps have the length η‖gref‖ with η such that the linear prediction is a decrease by
    STEP_SIZE of the loss; None where the reference step does not lower the loss.
    """
    norm2 = sum(float((g.double() ** 2).sum()) for g in reference.gradients.values())
    if reference.loss is None or not norm2 or not reference.loss:
        return None
    eta = STEP_SIZE * abs(reference.loss) / norm2
    after = _loss_after(tape, reference, eta)
    mine = _loss_after(tape, candidate, eta)
    if after is None or mine is None or not after < reference.loss:
        return None
    return (reference.loss - mine) / (reference.loss - after)


def _loss_after(tape: Tape, trial: Trial, eta: float) -> float | None:
    weights = parameter_values(tape)
    moved = {
        name: weights[name] - eta * gradient.reshape(weights[name].shape)
        for name, gradient in trial.gradients.items()
        if name in weights and gradient.numel() == weights[name].numel()
    }
    try:
        return loss_at(tape, moved)
    except ReplayError:  # the step left the domain of an op, a cross entropy's 0..1 say
        return float("inf")
