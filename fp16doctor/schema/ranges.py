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


@dataclass(frozen=True, slots=True)
class ModuleRanges:
    """Ranges of one module's outputs and of the gradients with respect to them, over the run."""

    module_path: str  # FQN below its root
    module_class: str
    role: str  # output, grad_output, weight, weight.grad
    steps: tuple[int, ...]  # steps at which ``stats`` were taken
    stats: tuple[RangeStats, ...]
