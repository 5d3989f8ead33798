"""fp8_e5m2, the 8-bit format for gradients: OCP 8-bit Floating Point Specification (OFP8), E5M2.

Owns the stored facts of this one format; must not know its limits, which are derived from them.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

FP8_E5M2 = register(
    NumberFormat(name="fp8_e5m2", exponent_bits=5, mantissa_bits=2, dtype_name="float8_e5m2")
)
