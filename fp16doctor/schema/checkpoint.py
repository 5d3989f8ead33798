"""What a file of weights would lose in other number formats.

Must not know how the file is read (``record``) or shown (``report``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.schema.diagnosis import FormatLimits


@dataclass(frozen=True, slots=True)
class Fit:
    """One tensor cast to one format; counts of elements that are finite and not zero before."""

    format: str       # fp16
    n_overflow: int   # would be inf, or the maximum where the format has no inf
    n_subnormal: int  # would be below the smallest normal number: fewer bits are kept
    n_zero: int       # would become zero

    @property
    def harmless(self) -> bool:
        """Whether no value leaves the normal range of the format."""
        return not (self.n_overflow or self.n_subnormal or self.n_zero)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One floating-point tensor of the file."""

    name: str             # keys joined by dots
    shape: tuple[int, ...]
    dtype: str            # as stored, without "torch."
    numel: int            # elements
    n_nonfinite: int      # inf and NaN as stored
    amax: float           # largest finite magnitude, 0.0 where there is none
    amin_nonzero: float   # smallest non-zero magnitude, inf where there is none
    fits: tuple[Fit, ...] # one for each format asked for


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The file as a whole."""

    file: str
    formats: tuple[FormatLimits, ...]  # those asked for, in that order
    tensors: tuple[StoredTensor, ...]  # in the order of the file
    n_other: int = 0  # tensors of integers, booleans or complex numbers: not judged
