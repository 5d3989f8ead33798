"""bf16, bfloat16: the upper half of an fp32 value (Intel, BFLOAT16 Hardware Numerics Definition).

Owns the stored facts of this one format; must not know its limits, which are derived from them.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

BF16 = register(NumberFormat(name="bf16", exponent_bits=8, mantissa_bits=7, dtype_name="bfloat16"))
