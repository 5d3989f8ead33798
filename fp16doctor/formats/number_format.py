"""What a floating-point format is: a few stored facts, every limit derived, and the registry.

Must not know torch; casting is in ``rounding``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fp16doctor.errors import Fp16DoctorError


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary floating-point format with a sign bit and round to nearest even.

    Limits carry the names of ``torch.finfo`` where it has one. All are Python floats, exact
    unless a property says otherwise.
    """

    name: str  # as users say it: "fp16"
    exponent_bits: int
    mantissa_bits: int  # stored bits, without the leading one
    dtype_name: str | None = (
        None  # torch's name without the prefix: "float16"; None: torch has none
    )
    has_inf: bool = True  # False: what rounds past max becomes max (saturation)
    has_nan: bool = True
    has_subnormals: bool = True
    max_code_reserved: bool = False  # no inf: the top exponent holds numbers, its last code is NaN

    @property
    def bits(self) -> int:
        """Bits of one value, sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """Stored exponent of 1.0."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """Binary exponent of ``max``: fp16 15."""
        reserved = 1 if self.has_inf else 0  # IEEE formats keep the top exponent for inf and NaN
        return int(2**self.exponent_bits) - 1 - reserved - self.bias

    @property
    def min_exponent(self) -> int:
        """Binary exponent of ``smallest_normal``: fp16 -14."""
        return 1 - self.bias

    @property
    def max(self) -> float:
        """Largest finite value: fp16 65504."""
        missing = 2 if self.max_code_reserved else 1  # ulps below the next power of two
        return math.ldexp(2.0 - missing * self.eps, self.max_exponent)

    @property
    def smallest_normal(self) -> float:
        """Smallest value with full precision: fp16 2^-14."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest non-zero magnitude: fp16 2^-24; ``smallest_normal`` without subnormals."""
        if not self.has_subnormals:
            return self.smallest_normal
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Spacing at 1: fp16 2^-10."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a normal value: half of ``eps``."""
        return self.eps / 2

    @property
    def overflow_threshold(self) -> float:
        """First magnitude that rounds past ``max``: fp16 65520.

        Half a spacing above ``max``, where the tie goes to the even neighbour (IEEE 754-2019,
        4.3.1). In e4m3fn ``max`` is the even one: 464 itself still rounds to 448. Beyond the range
        of a Python float for fp64, hence inf there.
        """
        half_spacing = math.ldexp(1.0, self.max_exponent - self.mantissa_bits - 1)
        return self.max + half_spacing

    @property
    def underflow_threshold(self) -> float:
        """Largest magnitude that rounds to zero, by the tie to even: fp16 2^-25.

        Below the range of a Python float for fp64, hence 0.0 there.
        """
        return self.smallest_subnormal / 2

    @property
    def dynamic_range_binades(self) -> int:
        """Binades that hold a finite non-zero value: fp16 40."""
        lowest = self.min_exponent - (self.mantissa_bits if self.has_subnormals else 0)
        return self.max_exponent - lowest + 1


_REGISTRY: dict[str, NumberFormat] = {}


def register(fmt: NumberFormat) -> NumberFormat:
    """Add ``fmt`` to the registry and return it.

    Raises:
        ValueError: its name or its dtype name is taken; the two files cannot both stand.
    """
    if fmt.name in _REGISTRY:
        raise ValueError(f"number format {fmt.name!r} is registered twice")
    if fmt.dtype_name is not None and format_of_dtype_name(fmt.dtype_name) is not None:
        raise ValueError(f"dtype {fmt.dtype_name!r} of {fmt.name!r} belongs to another format")
    _REGISTRY[fmt.name] = fmt
    return fmt


def get_format(name: str) -> NumberFormat:
    """Return the format called ``name``, e.g. ``"fp16"``.

    Raises:
        Fp16DoctorError: there is none of that name.
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        known = ", ".join(_REGISTRY)
        raise Fp16DoctorError(
            f"looked for a number format named {name!r}; there is none; use one of: {known}",
            "unknown-format",
        ) from None


def all_formats() -> tuple[NumberFormat, ...]:
    """Return every format, in the order of their files' names."""
    return tuple(_REGISTRY.values())


def format_of_dtype_name(dtype_name: str) -> str | None:
    """Return the name of the format of a torch dtype: ``"float16"`` -> ``"fp16"``.

    None for a dtype that is no floating-point format of the registry: integers, complex numbers.
    """
    return next((f.name for f in _REGISTRY.values() if f.dtype_name == dtype_name), None)
