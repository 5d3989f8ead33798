"""What is known of every gradient of a step: the scale it carries, and what was done to it.

Must not know how it came to be known (``gradients``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.record.roll import RawOp
from fp16doctor.record.usage.step_view import Scaling, Seen
from fp16doctor.schema.usage import UsageKind


@dataclass(slots=True)
class Touch:
    """Something done to gradients that carried a scale."""

    kind: UsageKind
    op: RawOp
    index: int
    gradients: set[int]
    limit: float | None = None
    factor: float | None = None  # the constant it multiplied by


@dataclass(slots=True)
class GradientStates:
    """The state of every gradient of the step, by storage."""

    scaled: dict[int, Scaling] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)  # -> op that seeds the unscaled backward
    divided: set[int] = field(default_factory=set)  # by the scale, by hand
    unscaled: set[int] = field(default_factory=set)  # by GradScaler, and not started afresh since
    clipped: set[int] = field(default_factory=set)  # while scaled
    derived: set[int] = field(default_factory=set)  # computed from scaled gradients
    mixed: dict[int, Seen] = field(default_factory=dict)  # sums of two scales that nothing used yet
    limits: dict[int, float] = field(default_factory=dict)  # derived -> constant it was made with
    touches: list[Touch] = field(default_factory=list)
    read_back: bool = False  # a number derived from scaled gradients went to Python

    def forget(self, numbers: set[int]) -> None:
        """These gradients start afresh."""
        for number in numbers:
            self.scaled.pop(number, None)
            self.mixed.pop(number, None)
            self.plain.pop(number, None)
        for kept in (self.divided, self.unscaled, self.clipped):
            kept -= numbers

    def inherit(self, new: int, old: int) -> None:
        """``new`` holds what the gradient ``old`` holds."""
        self.forget({new})
        if old in self.scaled:
            self.scaled[new] = self.scaled[old]
        if old in self.plain:
            self.plain[new] = self.plain[old]
        for kept in (self.divided, self.unscaled, self.clipped):
            if old in kept:
                kept.add(new)
