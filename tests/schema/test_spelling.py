from __future__ import annotations

import math

import pytest

from fp16doctor.schema.spelling import number, power


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (184320.0, "1.84e5"),
        (65504.0, "65504"),
        (-65520.0, "−65520"),
        (2.0**-24, "2⁻²⁴"),
        (0.125, "0.125"),
        (1.0, "1"),
        (1 - 2.0**-20, "1 − 9.54e-7"),
        (-(1 + 3e-5), "−(1 + 3e-5)"),
        (0.9994, "0.999"),
        (0.0, "0"),
        (-math.inf, "−inf"),
        (math.nan, "NaN"),
        (-0.3, "−0.3"),
        (777.0, "777"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_power() -> None:
    assert power(-133) == "2⁻¹³³"
