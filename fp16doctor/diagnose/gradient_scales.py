"""What each loss scale would do to the gradients that the survey saw.

By binade: elements of the binade that holds a limit count as below it. Must not know which scale
is best (``prescribe``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import floor, log2

from fp16doctor.formats.number_format import get_format
from fp16doctor.schema.prescription import Prescription, RemedyKind
from fp16doctor.schema.ranges import GradientScales, ModuleRanges, ScaleShares

LARGEST = 24  # exponent of the largest scale: apex's bound
_FORMAT = "fp16"


def gradient_scales(
    ranges: Iterable[ModuleRanges],
    prescriptions: Iterable[Prescription] = (),
    *,
    by_hand: float = 1.0,
) -> GradientScales | None:
    """Return the gradients' exponents and the shares of every scale; None without gradients.

    ``by_hand`` is a constant that the script multiplies its loss by where no scaler does.
    """
    counts = _unscaled(ranges, by_hand)
    if not counts:
        return None
    window = _window(prescriptions)
    return GradientScales(
        format=_FORMAT,
        exponents=tuple(sorted(counts.items())),
        shares=tuple(_shares(counts, k) for k in range(LARGEST + 1)),
        low=window.get("low"),
        recommended=window.get("recommended"),
        high=window.get("high"),
    )


def _unscaled(ranges: Iterable[ModuleRanges], by_hand: float) -> Counter[int]:
    """Add up the exponents of all gradients, less that of the loss scale of their step."""
    counts: Counter[int] = Counter()
    for one in ranges:
        if not one.role.startswith("grad_output"):
            continue
        scales = one.loss_scales or (1.0,) * len(one.stats)
        for stats, scale in zip(one.stats, scales, strict=True):
            less = floor(log2(scale * by_hand)) if scale > 0 else 0
            for exponent, n in stats.exponents:
                counts[exponent - less] += n
    return counts


def _shares(counts: Counter[int], power: int) -> ScaleShares:
    fmt, total = get_format(_FORMAT), sum(counts.values())
    top, normal = floor(log2(fmt.max)), floor(log2(fmt.smallest_normal))
    least = floor(log2(fmt.smallest_subnormal)) - 1  # half of it rounds up to it
    moved = {e + power: n for e, n in counts.items()}
    return ScaleShares(
        scale=2.0**power,
        overflow=sum(n for e, n in moved.items() if e > top) / total,
        subnormal=sum(n for e, n in moved.items() if least <= e < normal) / total,
        flushed=sum(n for e, n in moved.items() if e < least) / total,
    )


def _window(prescriptions: Iterable[Prescription]) -> dict[str, float]:
    for prescription in prescriptions:
        remedy = prescription.remedy
        if remedy.kind is RemedyKind.LOSS_SCALE and isinstance(remedy.value, dict):
            return {str(k): float(v) for k, v in remedy.value.items()}
    return {}
