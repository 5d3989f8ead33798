"""fp16, half precision: IEEE 754-2019 binary16.

Owns the stored facts of this one format; must not know its limits, which are derived from them.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

FP16 = register(NumberFormat(name="fp16", exponent_bits=5, mantissa_bits=10, dtype_name="float16"))
