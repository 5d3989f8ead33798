"""How large the values of one tensor were, independent of any number format.

Must not know formats: shares below or above a format's limits are derived later.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RangeStats:
    """Magnitudes of one tensor at one step."""

    numel: int  # elements
    n_zero: int  # exact zeros of either sign
    n_nan: int
    n_inf: int
    amax: float  # largest finite magnitude, 0.0 where there is none
    amin_nonzero: float  # smallest non-zero magnitude, inf where there is none
    exponents: tuple[tuple[int, int], ...] = ()  # (binary exponent, count), ascending, finite non-zero only
    sum_abs: float = 0.0  # sum of the finite magnitudes, to about 1e-6 of itself


@dataclass(frozen=True, slots=True)
class Extreme:
    """The largest magnitude of one tensor at a step that has no ``RangeStats``."""

    step: int
    amax: float  # largest finite magnitude; 0.0 where an inf or a NaN hid it
    nonfinite: bool  # it had an inf or a NaN


@dataclass(frozen=True, slots=True)
class ModuleRanges:
    """Ranges of one module's outputs and of the gradients with respect to them, over the run."""

    module_path: str  # FQN below its root
    module_class: str
    role: str  # output, grad_output (with [i] where a module returns several tensors), weight, weight.grad
    steps: tuple[int, ...]  # steps at which ``stats`` were taken; the last of those merged into one
    stats: tuple[RangeStats, ...]  # in the tensors' own units: grad_output holds the loss scale
    loss_scales: tuple[float, ...] = ()  # loss scale that ``stats`` of a grad_output hold, largest of those merged
    n_looked: int = 0  # steps looked at, for the extremes alone included
    amax: float = 0.0  # largest finite magnitude over all of these
    amax_step: int | None = None  # step of that
    amax_unscaled: float = 0.0  # the same for magnitudes with each step's loss scale divided out
    n_nonfinite: int = 0  # steps with an inf or a NaN
    first_nonfinite: int | None = None  # the first of them
    extremes: tuple[Extreme, ...] = ()  # of the first steps in which any module had an inf or a NaN


@dataclass(frozen=True, slots=True)
class ScaleShares:
    """What one loss scale does to the gradients of a run, judged by binade."""

    scale: float
    overflow: float  # share of the non-zero gradient elements above the format's maximum
    subnormal: float  # share below its smallest normal number that is not zero
    flushed: float  # share that becomes zero


@dataclass(frozen=True, slots=True)
class GradientScales:
    """The gradients with respect to module outputs, each step's loss scale divided out."""

    format: str  # "fp16"
    exponents: tuple[tuple[int, int], ...]  # (binary exponent, elements), ascending
    shares: tuple[ScaleShares, ...]  # of scales 1, 2, 4, …
    low: float | None = None  # window of loss scales that a trial found
    recommended: float | None = None
    high: float | None = None
