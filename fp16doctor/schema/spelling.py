"""How numbers and names are spelled: the one rule that findings and reports share.

Must not know sentences.
"""

from __future__ import annotations

import math
import re

_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_DIGITS = {to: chr(of) for of, to in _SUPERSCRIPTS.items()}
_EXACT = (65504.0, 65520.0)  # fp16's max and overflow threshold: always in full
_PLAIN_POWERS = range(-3, 21)  # 0.125 … 1048576 are known better as plain numbers
_NEAR_ONE = 5e-4  # closer to 1 than this, three digits would say 1


def power(exponent: int) -> str:
    """Return a power of two: 2¹⁶, 2⁻²⁴."""
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def number(value: float, digits: int = 3) -> str:
    """Return ``digits`` significant digits; fp16's limits and powers of two exactly.

    >>> number(184320.0), number(65504.0), number(2.0**-24), number(1 - 2.0**-20)
    ('1.84e5', '65504', '2⁻²⁴', '1 − 9.54e-7')
    """
    return special(value) or _near_one(value) or plain(value, digits)


def special(value: float) -> str:
    """Return the words for values that are not rounded: NaN, inf, 0, limits, powers of two."""
    if math.isnan(value):
        return "NaN"
    sign = "−" if value < 0 else ""
    if math.isinf(value):
        return sign + "inf"
    if value == 0:
        return "0"
    size = abs(value)
    mantissa, exponent = math.frexp(size)
    if size in _EXACT or (mantissa == 0.5 and exponent - 1 in _PLAIN_POWERS):
        return sign + (str(int(size)) if size >= 1 else f"{size:g}")
    return sign + power(exponent - 1) if mantissa == 0.5 else ""


def _near_one(value: float) -> str:
    """Return ``1 − 9.54e-7``: what is left to 1 is the point of such a number."""
    gap = abs(value) - 1
    if not 0 < abs(gap) < _NEAR_ONE:
        return ""
    text = f"1 {'−' if gap < 0 else '+'} {plain(abs(gap), 3)}"
    return text if value > 0 else f"−({text})"


def plain(value: float, digits: int) -> str:
    """Return ``digits`` significant digits with a true minus and a short exponent."""
    whole = value == int(value) and abs(value) <= 1024
    return tidy(f"{value:.0f}" if whole else f"{value:.{digits}g}")


def tidy(text: str) -> str:
    """Return ``−1.84e5`` for ``-1.84e+05``: a true minus, a short exponent."""
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace("-", "−") + (f"e{int(exponent)}" if exponent else "")


def value(text: str) -> float | None:
    """Return the number that ``text`` spells, None where it spells none that is finite.

    >>> value("1.84e5"), value("2⁻²⁴") == 2.0**-24, value("−0.44"), value("NaN")
    (184000.0, True, -0.44, None)
    """
    plain_text = text.replace("−", "-")
    power_of_two = re.fullmatch(r"(-?)2([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", plain_text)
    if power_of_two:
        size = math.ldexp(1.0, int(power_of_two[2].translate(_DIGITS)))
        return -size if power_of_two[1] else size
    try:
        number_read = float(plain_text)
    except ValueError:
        return None
    return number_read if math.isfinite(number_read) else None


def module(path: str, of_class: str | None) -> str:
    """Return a module's path as code; a bare number says little without its class.

    >>> module("encoder.fc1", "Linear"), module("0", "Linear")
    ('`encoder.fc1`', '`0` (Linear)')
    """
    bare = path.replace(".", "").isdigit() and of_class
    return f"`{path}` ({of_class})" if bare else f"`{path}`"
