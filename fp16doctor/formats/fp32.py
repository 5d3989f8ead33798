"""fp32, single precision: IEEE 754-2019 binary32.

Owns the stored facts of this one format; must not know its limits, which are derived from them.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

FP32 = register(NumberFormat(name="fp32", exponent_bits=8, mantissa_bits=23, dtype_name="float32"))
