"""The ranges of one module and role over a run: what is kept, and what older steps are merged to.

Must not know hooks or devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fp16doctor.record.binades import merge
from fp16doctor.record.foresight import nears_limit
from fp16doctor.schema.ranges import Extreme, ModuleRanges, RangeStats


@dataclass(slots=True)
class Sample:
    """Full statistics of one step, or of several merged ones."""

    step: int  # the last one
    scale: float  # the largest loss scale
    stats: RangeStats


@dataclass(slots=True)
class Track:
    """One module and role."""

    path: str
    class_name: str
    role: str
    scaled: bool = False  # its values hold the loss scale
    # the open step
    touched: bool = False
    largest: float = 0.0  # finite magnitudes only
    bad: bool = False  # inf or NaN
    stats: RangeStats | None = None
    # the run
    samples: list[Sample] = field(default_factory=list)
    n_looked: int = 0
    amax: float = 0.0
    amax_step: int | None = None
    amax_unscaled: float = 0.0
    n_nonfinite: int = 0
    first_nonfinite: int | None = None
    extremes: list[Extreme] = field(default_factory=list)
    before: float = 0.0  # the largest of the step that was closed last
    limit: float = math.inf  # the largest value of its format, once it was screened

    def screened(self, magnitude: float) -> None:
        """Take the largest magnitude of one more tensor of the open step, inf or NaN included."""
        if math.isfinite(magnitude):
            self.largest = max(self.largest, magnitude)
        else:
            self.bad = True

    def measured(self, stats: RangeStats) -> None:
        """Take the statistics of one more tensor of the open step."""
        self.largest = max(self.largest, stats.amax)
        self.bad = self.bad or bool(stats.n_inf or stats.n_nan)
        self.stats = stats if self.stats is None else merge(self.stats, stats)

    def nearing(self, loss_scale: float) -> bool:
        """Whether the open step's values grow towards their format's maximum.

        A gradient that holds a loss scale is the scaler's own affair.
        """
        if loss_scale != 1.0 and (self.scaled or self.role.endswith(".grad")):
            return False
        return nears_limit(self.largest, self.before, self.limit)

    def close(self, step: int, loss_scale: float, *, keep: bool = False) -> bool:
        """Book the open step; True if it had an inf or a NaN.

        ``keep``: its largest magnitude is kept beside those of the run, statistics or not.
        """
        scale = loss_scale if self.scaled else 1.0
        self.n_looked += 1
        if self.largest > self.amax:
            self.amax, self.amax_step = self.largest, step
        self.amax_unscaled = max(self.amax_unscaled, self.largest / scale)
        if self.bad:
            self.n_nonfinite += 1
            if self.first_nonfinite is None:
                self.first_nonfinite = step
        if keep and self.stats is None:
            self._keep(Extreme(step, self.largest, self.bad))
        if self.stats is not None:
            new = Sample(step, scale, self.stats)
            if self.samples and self.samples[-1].step == step:  # a step in two parts
                new = _join([self.samples.pop(), new])
            self.samples.append(new)
        bad, self.before = self.bad, self.largest
        self.forget()
        return bad

    def _keep(self, new: Extreme) -> None:
        if self.extremes and self.extremes[-1].step == new.step:  # a step in two parts
            old = self.extremes.pop()
            new = Extreme(new.step, max(old.amax, new.amax), old.nonfinite or new.nonfinite)
        self.extremes.append(new)

    def forget(self) -> None:
        """Drop what the open step has shown."""
        self.touched, self.largest, self.bad, self.stats = False, 0.0, False, None

    def thin(self, most: int) -> None:
        """Keep at most ``most`` samples: the older half is merged in neighbouring pairs."""
        while len(self.samples) > most:
            old = self.samples[: -max(most // 2, 1)]
            young = self.samples[len(old) :]
            pairs = [_join(old[i : i + 2]) for i in range(0, len(old), 2)]
            self.samples = pairs + young
            if len(old) == 1:
                return

    def ranges(self) -> ModuleRanges:
        """Return the track as the schema's noun."""
        return ModuleRanges(
            module_path=self.path,
            module_class=self.class_name,
            role=self.role,
            steps=tuple(s.step for s in self.samples),
            stats=tuple(s.stats for s in self.samples),
            loss_scales=tuple(s.scale for s in self.samples) if self.scaled else (),
            n_looked=self.n_looked,
            amax=self.amax,
            amax_step=self.amax_step,
            amax_unscaled=self.amax_unscaled,
            n_nonfinite=self.n_nonfinite,
            first_nonfinite=self.first_nonfinite,
            extremes=tuple(self.extremes),
        )


def _join(samples: list[Sample]) -> Sample:
    first, last = samples[0], samples[-1]
    if first is last:
        return first
    return Sample(last.step, max(first.scale, last.scale), merge(first.stats, last.stats))
