"""Whether an optimizer under a cure takes the steps that it takes in fp32, and keeps what it keeps.

A finite step is not yet the step that is meant: where a second moment is zero in fp16, Adam
divides by eps alone.

Must not know remedies or findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp16doctor.prescribe.intended import REALISED, Taken, taken
from fp16doctor.prescribe.stored import REALISED_FRACTION
from fp16doctor.replay.optimizer_state import StateLoss, lost_state
from fp16doctor.replay.trial import run_to_update
from fp16doctor.schema.policy import FP32, PrecisionPolicy
from fp16doctor.schema.precision import STATE_LOST
from fp16doctor.schema.spelling import number
from fp16doctor.schema.tape import Tape


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What the optimizer makes of kept steps under a candidate."""

    taken: Taken | None  # the worst of the kept steps; None where fp32 moves nothing
    state: StateLoss | None  # the tensor that loses most, behind the consecutive steps
    n_steps: int  # of these

    @property
    def reason(self) -> str:
        """Return why the steps are not those that are meant, "" where they are."""
        said, (low, high) = [], REALISED
        if self.taken is not None and not low <= self.taken.realised <= high:
            said.append(f"the updates realise {number(self.taken.realised)} of those of fp32")
        if self.state is not None and self.state.share > STATE_LOST:
            said.append(_lost(self.state, self.n_steps))
        return "; ".join(said)

    @property
    def numbers(self) -> dict[str, float]:
        """As a verification shows them."""
        if self.taken is None:
            return {}
        return {REALISED_FRACTION: self.taken.realised, "largest update error": self.taken.error}


def _lost(state: StateLoss, n_steps: int) -> str:
    what = "the second moment" if state.divides else "optimizer state"
    share = number(100 * state.share)
    so = ", whose steps are divided by eps alone" if state.divides else ""
    return (
        f"after {n_steps} steps {what} is 0 in {state.format} and not in fp32 for {state.zeros} of "
        f"{state.total} elements ({share} %) of one tensor{so}"
    )


def optimizer_step(
    tapes: Sequence[Tape],
    changed: Sequence[Tape],
    window: tuple[Tape, ...],
    policy: PrecisionPolicy,
) -> OptimizerStep:
    """Measure a candidate: ``changed`` are the kept steps ``tapes`` as it has them.

    ``window`` are the consecutive steps, changed as well. Raises ReplayError.
    """
    pairs = zip(tapes, changed, strict=True)
    found = [t for one, other in pairs if (t := _taken(one, other, policy)) is not None]
    worst = max(found, key=lambda t: abs(t.realised - 1), default=None)
    states, course = lost_state(window, policy)
    return OptimizerStep(
        worst, max(states, key=lambda s: s.share, default=None), len(course.losses)
    )


def _taken(tape: Tape, changed: Tape, policy: PrecisionPolicy) -> Taken | None:
    meant = run_to_update(tape, FP32)
    if not meant.finite or not any(bool((u != 0).any()) for u in meant.updates.values()):
        return None
    return taken(run_to_update(changed, policy), meant)
