"""Headroom of every module's output over the steps.

Must not know how ranges are recorded.
"""

from __future__ import annotations

from math import inf, log2, nan
from typing import Any

from fp16doctor.report import wording
from fp16doctor.report.pictures import canvas
from fp16doctor.report.view_model import PictureView, Table
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.ranges import ModuleRanges

MOST_ROWS, MOST_STEPS = 500, 400
_LEAST_STEPS = 2
_SCALE = (-2.0, 14.0)  # bits of headroom between which the shade changes
_LABEL = 44


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the map, or None where fewer than two steps were surveyed."""
    limits = format_of(diagnosis)
    chosen = [r for r in diagnosis.ranges if r.role.startswith("output")]
    chosen = [r for r in chosen if r.stats or r.extremes][:MOST_ROWS]
    steps = sorted({s for r in chosen for s in _steps(r)})[-MOST_STEPS:]
    if limits is None or len(steps) < _LEAST_STEPS:
        return None
    cells = [_row(r, steps, limits) for r in chosen]
    names = [_name(r) for r in chosen]
    labels = [wording.shortened(wording.visible(n), _LABEL) for n in names]
    height = 1.1 + 0.17 * len(chosen)
    return PictureView(
        name="heat-map",
        title=f"Headroom in {limits.name} by module and step",
        caption=(
            f"log2({wording.limit(limits.max)} / amax) of each module's output in bits: the "
            f"darker, the nearer the {limits.name} maximum; below 0 is beyond it; × marks inf or "
            "NaN; blank where nothing was surveyed. Beside the surveyed steps stand the first ones "
            "with an inf or a NaN in any module."
        ),
        svg=canvas.drawn(
            "heat-map",
            height,
            lambda f: _draw(f, cells, labels, steps, limits.name),
            left=canvas.margin(labels),
        ),
        table=_table(cells, names, steps),
    )


def format_of(diagnosis: Diagnosis) -> FormatLimits | None:
    """Return fp16's limits, or bf16's where only that ran."""
    ran = {name for name, _ in diagnosis.run.ops_by_dtype}
    wanted = "bf16" if "bfloat16" in ran and "float16" not in ran else "fp16"
    return next((f for f in diagnosis.formats if f.name == wanted), None)


def _row(ranges: ModuleRanges, steps: list[int], limits: FormatLimits) -> list[float]:
    """Return bits of headroom by step: −inf where something was not finite, NaN where unknown."""
    known = {e.step: (e.amax, e.nonfinite) for e in ranges.extremes}
    for step, stats in zip(ranges.steps, ranges.stats, strict=True):
        known[step] = stats.amax, bool(stats.n_inf or stats.n_nan)
    return [_bits_left(*known.get(step, (0.0, False)), limits) for step in steps]


def _steps(ranges: ModuleRanges) -> list[int]:
    return [*ranges.steps, *(e.step for e in ranges.extremes)]


def _bits_left(amax: float, bad: bool, limits: FormatLimits) -> float:
    if bad:
        return -inf
    return log2(limits.max) - log2(amax) if amax > 0 else nan


def _name(ranges: ModuleRanges) -> str:
    which = ranges.role.removeprefix("output")
    return (ranges.module_path or "root module") + which


def _draw(
    figure: Any, cells: list[list[float]], labels: list[str], steps: list[int], fmt: str
) -> None:
    import numpy as np

    axes = figure.subplots()
    values = np.array(cells)
    shades = np.ma.masked_invalid(np.where(np.isneginf(values), _SCALE[0], values))
    image = axes.imshow(shades, aspect="auto", cmap="cividis", vmin=_SCALE[0], vmax=_SCALE[1],
                        interpolation="none")  # fmt: skip
    rows, columns = np.nonzero(np.isneginf(values))
    axes.plot(columns, rows, linestyle="none", marker="x", markersize=4, color="#ffffff")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    stride = max(len(steps) // 10, 1)
    axes.set_xticks(range(0, len(steps), stride), [str(s) for s in steps[::stride]])
    axes.set_xlabel("step")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 12 / len(labels)), aspect=12, pad=0.01)
    bar.set_label(f"headroom in {fmt}, bits")
    bar.outline.set_visible(False)


def _table(cells: list[list[float]], names: list[str], steps: list[int]) -> Table:
    """The smallest headroom of each module, its step, and the last one."""
    rows = []
    for name, row in zip(names, cells, strict=True):
        known = [(bits, step) for bits, step in zip(row, steps, strict=True) if bits == bits]
        if known:
            least, at = min(known)
            rows.append((name, _bits(least), str(at), _bits(known[-1][0]), str(known[-1][1])))
    return Table(("module", "least headroom", "at step", "last", "at step"), tuple(rows))


def _bits(value: float) -> str:
    return "inf or NaN" if value == -inf else wording.bits(value)
