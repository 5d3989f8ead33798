"""fp8_e4m3, the 8-bit format for weights and activations: OFP8 specification, E4M3 (e4m3fn).

It has no infinity: the top exponent holds numbers, and only its last code is NaN. What rounds
past 448 saturates there, inf included, as torch casts since 2.13 (earlier versions gave NaN; the
specification allows both). Must not know its limits, which are derived.
"""

from __future__ import annotations

from fp16doctor.formats.number_format import NumberFormat, register

FP8_E4M3 = register(
    NumberFormat(
        name="fp8_e4m3",
        exponent_bits=4,
        mantissa_bits=3,
        dtype_name="float8_e4m3fn",
        has_inf=False,
        max_code_reserved=True,
    )
)
