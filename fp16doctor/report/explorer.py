"""The loss-scale explorer: the gradients' exponents under the window of fp16.

A plain bar chart whose window a script can move; without scripts it stands at the recommended
scale, or at the run's own. Must not know how shares are computed (they are in the diagnosis).
"""

from __future__ import annotations

import json
from math import log2

from fp16doctor.report import wording
from fp16doctor.report.view_model import Bar, ExplorerView, Table
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.ranges import GradientScales, ScaleShares
from fp16doctor.schema.spelling import power

WIDTH, HEIGHT, FOOT = 680.0, 150.0, 18.0  # of the drawing, in its own units
_MOST_EXPONENTS = 80


def explorer(diagnosis: Diagnosis) -> ExplorerView | None:
    """Return the chart, or None where the run has no gradients of modules."""
    found = diagnosis.gradient_scales
    limits = next((f for f in diagnosis.formats if found and f.name == found.format), None)
    if found is None or limits is None or not found.exponents:
        return None
    low, high = _view(found, limits)
    column = WIDTH / (high - low)
    at = _first(found, diagnosis)
    top, bottom = log2(limits.overflow_threshold), log2(limits.smallest_subnormal)
    normal = log2(limits.smallest_normal)
    return ExplorerView(
        width=WIDTH,
        height=HEIGHT,
        foot=FOOT,
        column=column,
        bars=_bars(found, low, column),
        ticks=tuple((_x(e, low, column), power(e)) for e in range(low + low % 2, high, 8)),
        window=(_x(bottom - at, low, column), _x(top - at, low, column)),
        normal=_x(normal - at, low, column),
        power=at,
        most=len(found.shares) - 1,
        said=sentence(found.shares[at], found.format),
        marks=_marks(found),
        data=json.dumps([[_brief(s), sentence(s, found.format)] for s in found.shares]),
        table=_table(found),
        format=found.format,
    )


def sentence(shares: ScaleShares, fmt: str) -> str:
    """``loss scale 1024: 0 % above the fp16 maximum · 3.1 % subnormal · 0.2 % flushed to zero``."""
    return wording.joined(
        f"loss scale {wording.number(shares.scale)}: {wording.share(shares.overflow)} above the "
        f"{fmt} maximum",
        f"{wording.share(shares.subnormal)} subnormal",
        f"{wording.share(shares.flushed)} flushed to zero",
    )


def _brief(shares: ScaleShares) -> list[float]:
    return [shares.overflow, shares.subnormal, shares.flushed]


def _first(found: GradientScales, diagnosis: Diagnosis) -> int:
    """Return the exponent of the scale shown first: recommended, else the run's last, else 1."""
    scales = [s.loss_scale for s in diagnosis.steps if s.loss_scale]
    scale = found.recommended or (scales[-1] if scales else 1.0)
    return min(max(round(log2(scale)), 0), len(found.shares) - 1)


def _view(found: GradientScales, limits: FormatLimits) -> tuple[int, int]:
    """Return the exponents shown: those there are, and fp16's own at scale 1."""
    low = min(found.exponents[0][0], round(log2(limits.smallest_subnormal)) - 2)
    high = max(found.exponents[-1][0] + 1, round(log2(limits.max)) + 2)
    return max(low, high - _MOST_EXPONENTS), high


def _x(exponent: float, low: int, column: float) -> float:
    return round((exponent - low) * column, 2)


def _bars(found: GradientScales, low: int, column: float) -> tuple[Bar, ...]:
    most = max(n for _, n in found.exponents)
    bars = []
    for exponent, n in found.exponents:
        if exponent >= low:
            tall = round(HEIGHT * n / most, 2)
            title = f"{power(exponent)}: {wording.plural(n, 'element')}"
            x = _x(exponent, low, column)
            bars.append(Bar(x, round(HEIGHT - tall, 2), round(column * 0.86, 2), tall, title))
    return tuple(bars)


def _marks(found: GradientScales) -> str:
    if found.low is None or found.high is None or found.recommended is None:
        return ""
    low, best, high = map(wording.number, (found.low, found.recommended, found.high))
    return f"window found by trial: {low} to {high}; recommended {best}"


def _table(found: GradientScales) -> Table:
    head = ("loss scale", f"above {found.format} maximum", "subnormal", "flushed to zero")
    rows = tuple(
        (wording.number(s.scale), *map(wording.share, (s.overflow, s.subnormal, s.flushed)))
        for s in found.shares
    )
    return Table(head, rows)
