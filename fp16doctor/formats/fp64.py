"""fp64, double precision: IEEE 754-2019 binary64.

Owns the stored facts of this one format; must not know its limits, which are derived from them.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

FP64 = register(NumberFormat(name="fp64", exponent_bits=11, mantissa_bits=52, dtype_name="float64"))
