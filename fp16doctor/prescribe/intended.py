"""The update that a step is meant to make, against the one it makes.

A loss scale is a matter of storage: the update is meant to be the one that fp32 makes without any.
So the fp32 replay with 1 for the scale is the measure of every way to use a GradScaler.

Must not know remedies or which use is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.prescribe.acceptance import IMPROVEMENT, NEGLIGIBLE
from fp16doctor.prescribe.bench import BUDGET_SPENT, Bench
from fp16doctor.replay.scaler_use import Edit, takes_a_step, with_scale, without_scaler
from fp16doctor.replay.scales import scaler_scale
from fp16doctor.replay.trial import Trial, run_to_update, run_trial
from fp16doctor.schema.policy import AS_RUN, FP32, PrecisionPolicy
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.tape import Tape

REALISED = (0.9, 1.1)  # fraction of the intended update that must be made
UNINTENDED = "of those of fp32 without a loss scale"
SPOILT = 10.0  # times the first step's loss
NO_STEP = "no step was kept in which the scaler let the optimizer step"
NO_SCALE = "the loss scale is no tensor of a GradScaler, so the step cannot be tried without it"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step did, beside what it was meant to do."""

    nonfinite: int  # elements in all sinks
    realised: float  # ⟨Δ, Δref⟩ / ‖Δref‖² over all parameters
    error: float  # largest ‖Δ − Δref‖ / ‖Δref‖ of one parameter

    @property
    def numbers(self) -> dict[str, float]:
        """As a verification shows them."""
        return {
            "non-finite elements": float(self.nonfinite),
            "realised fraction": self.realised,
            "largest update error": self.error,
        }


def verify(bench: Bench, edit: Edit, policy: PrecisionPolicy = AS_RUN) -> Verification:
    """Try edited steps under a policy: their updates must be the intended ones, the run's not."""
    if bench.exhausted:
        return Verification(Verdict.NOT_VERIFIED, reason=BUDGET_SPENT)
    tapes = [t for t in bench.tapes if takes_a_step(t)]
    if not tapes:
        return Verification(Verdict.NOT_VERIFIED, reason=NO_STEP)
    try:
        with bench.timing():
            tapes = _unspoilt(tapes)
            pairs = [_compare(tape, edit, policy) for tape in tapes]
    except ReplayError as error:
        return Verification(Verdict.NOT_VERIFIED, reason=error.message)
    before, after = (_worst([pair[i] for pair in pairs]) for i in (0, 1))
    reason = _reason(before, after)
    verdict = Verdict.REFUTED if reason else Verdict.VERIFIED
    steps = tuple(sorted(t.step for t in tapes))
    return Verification(verdict, reason, before.numbers, after.numbers, steps)


def _unspoilt(tapes: Sequence[Tape]) -> list[Tape]:
    """Leave out later steps whose loss is far off: their weights took wrong updates before."""
    first, *later = sorted(tapes, key=lambda t: t.step)
    level = _loss_of(first)
    return [first, *(t for t in later if _loss_of(t) <= SPOILT * level)]


def _loss_of(tape: Tape) -> float:
    """Return the magnitude of a step's loss as run, inf where it is not finite."""
    loss = run_trial(tape, AS_RUN).loss
    return abs(loss) / scaler_scale(tape) if loss is not None and isfinite(loss) else inf


def _compare(tape: Tape, edit: Edit, policy: PrecisionPolicy) -> tuple[Taken, Taken]:
    """Return (as run, edited)."""
    plain = without_scaler(tape)
    if plain is None:
        raise ReplayError(NO_SCALE, "no-scaler")
    meant = run_to_update(plain, FP32)
    if not meant.finite:
        raise ReplayError("the fp32 replay without a loss scale is not finite either", "not-finite")
    run = taken(run_to_update(tape, AS_RUN), meant)
    return run, taken(_settled(tape, edit, policy), meant)


def _settled(tape: Tape, edit: Edit, policy: PrecisionPolicy) -> Trial:
    """Lower the scale as a GradScaler would while gradients are not finite."""
    scale, trial = scaler_scale(tape), None
    while True:
        lowered = with_scale(tape, scale)
        edited = None if lowered is None else edit(lowered)
        if edited is None and trial is not None:  # at 1 there is nothing to do otherwise
            return trial
        if edited is None:
            raise ReplayError(
                "the change cannot be expressed on the recorded step", "not-expressed"
            )
        trial = run_to_update(edited, policy)
        if trial.finite or trial.nonfinite.get("loss") or scale <= 1:
            return trial
        scale = max(scale / 4, 1.0)


def taken(trial: Trial, meant: Trial) -> Taken:
    """Hold the updates of a step against those that are meant, of all parameters that move."""
    dot = norm2 = 0.0
    errors, sizes = {}, {}
    for name, wanted in meant.updates.items():
        got = trial.updates.get(name)
        size = float((wanted.double() ** 2).sum())
        if got is None or not size:
            continue
        dot, norm2 = dot + float((got.double() * wanted.double()).sum()), norm2 + size
        errors[name], sizes[name] = _distance(got, wanted), size
    errors = {n: e for n, e in errors.items() if sizes[n] > NEGLIGIBLE**2 * norm2}
    bad = sum(trial.nonfinite.values())
    return Taken(bad, dot / norm2 if norm2 else 0.0, max(errors.values(), default=0.0))


def _distance(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def _worst(taken: Sequence[Taken]) -> Taken:
    return Taken(
        max(t.nonfinite for t in taken),
        max((t.realised for t in taken), key=lambda x: abs(x - 1)),
        max(t.error for t in taken),
    )


def _reason(before: Taken, after: Taken) -> str:
    """Return why the edited step is not accepted, "" where it is."""
    low, high = REALISED
    if after.nonfinite:
        return f"{after.nonfinite} elements are not finite"
    if not low <= after.realised <= high:
        return f"the updates realise {after.realised:.3g} {UNINTENDED}"
    if before.nonfinite or not after.error > IMPROVEMENT * before.error:
        return ""
    return (
        f"no better than the run itself: update error {after.error:.3g}, as run {before.error:.3g}"
    )
