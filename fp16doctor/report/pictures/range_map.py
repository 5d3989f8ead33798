"""The range map: one row a module, its binary exponents against the limits of the formats.

Must not know how ranges are recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite, log2
from typing import Any

from fp16doctor.report import wording
from fp16doctor.report.pictures import canvas
from fp16doctor.report.view_model import PictureView, Table
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.ranges import ModuleRanges
from fp16doctor.schema.spelling import power

MOST_ROWS = 500
_SHARE = 0.01  # of the non-zero elements that either end of the thick part leaves out
_VIEW = (-30, 20)  # exponents that are shown in any case: fp16 from subnormals to overflow
_FARTHEST = (-60, 40)  # exponents beyond are cut at the edge: bf16's limits are far outside
_LABEL = 44  # characters of a module's path


@dataclass(frozen=True, slots=True)
class Span:
    """Magnitudes of one module in one direction, as binary exponents, over all surveyed steps."""

    low: int  # of the smallest non-zero magnitude
    p1: int  # below it lies 1 % of the non-zero elements
    p99: int
    high: int  # of the largest finite magnitude
    nonfinite: int  # inf and NaN elements of the surveyed steps
    first_bad: int | None = None  # first step with an inf or a NaN, surveyed or not


@dataclass(frozen=True, slots=True)
class Row:
    """One module."""

    path: str
    forward: Span | None
    backward: Span | None


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the map, or None where nothing was surveyed."""
    rows = rows_of(diagnosis.ranges)
    if not rows:
        return None
    shown = rows[:MOST_ROWS]
    left = len(rows) - len(shown)
    return PictureView(
        name="range-map",
        title="Range map",
        caption=(
            "Binary exponents of each module's outputs (upper bar) and of the gradients with "
            "respect to them, loss scale included (lower, slimmer bar), in order of execution: "
            "thick from 1 % to 99 % of the non-zero elements, thin to the extremes; "
            "× marks inf or NaN in any step that was looked at."
        ),
        svg=canvas.drawn(
            "range-map",
            1.0 + 0.2 * len(shown),
            lambda f: _draw(f, shown, diagnosis),
            left=canvas.margin(_labels(shown)),
        ),
        table=_table(shown, left),
    )


def rows_of(ranges: Iterable[ModuleRanges]) -> list[Row]:
    """Return the modules that have outputs or gradients, in order of execution."""
    found: dict[str, dict[str, list[ModuleRanges]]] = {}
    for one in ranges:
        role = one.role.partition("[")[0]
        if role in ("output", "grad_output") and (one.stats or one.extremes):
            found.setdefault(one.module_path, {}).setdefault(role, []).append(one)
    rows = []
    for path, roles in found.items():
        forward, backward = (span_of(roles.get(r, [])) for r in ("output", "grad_output"))
        if forward is not None or backward is not None:
            rows.append(Row(path or "root module", forward, backward))
    return rows


def span_of(ranges: Iterable[ModuleRanges]) -> Span | None:
    """Merge all statistics of one direction; None where every element is zero."""
    counts: Counter[int] = Counter()
    bad, amax, wrong = 0, 0.0, []
    for one in ranges:
        amax = max(amax, one.amax)
        wrong += [] if one.first_nonfinite is None else [one.first_nonfinite]
        for stats in one.stats:
            counts.update(dict(stats.exponents))
            bad += stats.n_inf + stats.n_nan
    if not counts:
        return None
    exponents = sorted(counts)
    high = max(exponents[-1], floor(log2(amax)) if amax > 0 and isfinite(amax) else -1075)
    p1, p99 = _quantile(counts, _SHARE), _quantile(counts, 1 - _SHARE)
    return Span(exponents[0], p1, p99, high, bad, min(wrong, default=None))


def _quantile(counts: Counter[int], share: float) -> int:
    wanted, seen = share * sum(counts.values()), 0
    for exponent in sorted(counts):
        seen += counts[exponent]
        if seen >= wanted:
            return exponent
    return max(counts)


def _draw(figure: Any, rows: list[Row], diagnosis: Diagnosis) -> None:
    axes = figure.subplots()
    low, high = _view(rows)
    forward = [(i - 0.17, r.forward) for i, r in enumerate(rows) if r.forward is not None]
    backward = [(i + 0.17, r.backward) for i, r in enumerate(rows) if r.backward is not None]
    _bars(axes, forward, canvas.FIRST, (low, high))
    _bars(axes, backward, canvas.SECOND, (low, high))
    _limits(axes, diagnosis.formats, low, high)
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), _labels(rows))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("binary exponent (magnitude 2^x)")


def _labels(rows: list[Row]) -> list[str]:
    return [wording.shortened(wording.visible(r.path), _LABEL) for r in rows]


def _view(rows: list[Row]) -> tuple[int, int]:
    spans = [s for r in rows for s in (r.forward, r.backward) if s is not None]
    low = min([_VIEW[0], *(s.low - 1 for s in spans)])
    high = max([_VIEW[1], *(s.high + 2 for s in spans)])
    return max(low, _FARTHEST[0]), min(high, _FARTHEST[1])


def _bars(axes: Any, spans: list[tuple[float, Span]], color: str, view: tuple[int, int]) -> None:
    """Draw all rows of one direction as two paths: few elements, however many modules."""
    thin = [(max(s.low, view[0]), min(s.high + 1, view[1]), y) for y, s in spans]
    thick = [(max(s.p1, view[0]), min(s.p99 + 1, view[1]), y) for y, s in spans]
    caps = color == canvas.SECOND
    axes.hlines([y for *_, y in thin], [a for a, *_ in thin], [b for _, b, _ in thin],
                color=color, linewidth=1)  # fmt: skip
    axes.hlines([y for *_, y in thick], [a for a, *_ in thick], [b for _, b, _ in thick],
                color=color, linewidth=2.5 if caps else 4.5)  # fmt: skip
    bad = [y for y, s in spans if s.nonfinite or s.first_bad is not None]
    axes.plot([view[1] - 0.7] * len(bad), bad, linestyle="none", marker="x", color=canvas.BAD)


def _limits(axes: Any, formats: tuple[FormatLimits, ...], low: int, high: int) -> None:
    """Draw the limits of each 16-bit format that lie inside the view."""
    styles = {"fp16": (0, (4, 2)), "bf16": (0, (1, 2))}
    for fmt in formats:
        if fmt.name not in styles:
            continue
        for name, value in (
            ("max", fmt.max),
            ("smallest normal", fmt.smallest_normal),
            ("smallest subnormal", fmt.smallest_subnormal),
        ):
            x = log2(value)
            if low < x < high:
                axes.axvline(x, color=canvas.SOFT, linewidth=0.9, linestyle=styles[fmt.name])
                axes.annotate(f"{fmt.name} {name}", (x, 1), xycoords=("data", "axes fraction"),
                              ha="center", va="bottom", fontsize=8, color=canvas.SOFT)  # fmt: skip


def _table(rows: list[Row], left: int) -> Table:
    head = ("module", "direction", "smallest", "1 %", "99 %", "largest", "inf or NaN",
            "first at step")  # fmt: skip
    cells = [
        (row.path, name, *(power(e) for e in (s.low, s.p1, s.p99, s.high)),
         wording.count(s.nonfinite), wording.NOTHING if s.first_bad is None else str(s.first_bad))
        for row in rows
        for name, s in (("output", row.forward), ("gradient", row.backward))
        if s is not None
    ]  # fmt: skip
    left_out = f"… and {wording.plural(left, 'more module')} (in the JSON)" if left else ""
    return Table(head, tuple(cells), left_out)
