"""One candidate, tried on all kept steps.

Must not know how it is tried or which remedy it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.prescribe.acceptance import Judgement
from fp16doctor.prescribe.figures import figures
from fp16doctor.replay.trajectory import Course
from fp16doctor.replay.trial import Trial
from fp16doctor.schema.policy import PrecisionPolicy


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate on all kept steps."""

    policy: PrecisionPolicy
    judgements: tuple[Judgement, ...]
    trials: tuple[Trial, ...]
    failure: str = ""  # why it could not be tried
    course: Course | None = None  # consecutive steps, where every single one was accepted
    course_reason: str = ""  # why the course is not accepted
    no_better: str = ""  # why it is no better than the run, where that is accepted too
    scale: float | None = None  # loss scale it was tried at, where that is not the run's own

    @property
    def sound(self) -> bool:
        """Every step and the consecutive ones meet the criteria, as the run itself may too."""
        single = not self.failure and all(j.accepted for j in self.judgements)
        return single and not self.course_reason

    @property
    def accepted(self) -> bool:
        """Sound, and better than the run where that is sound as well."""
        return self.sound and not self.no_better

    @property
    def figures(self) -> dict[str, float]:
        """The worst of each number over the steps."""
        return figures(self.judgements, self.trials, self.scale, self.course)

    @property
    def gradient_error(self) -> float | None:
        """The largest over the steps."""
        known = [j.gradient_error for j in self.judgements if j.gradient_error is not None]
        return max(known, default=None)
