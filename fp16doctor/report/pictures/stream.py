"""The residual stream from block to block, as run and with the initial weights that were tried.

Must not know how it is measured or which cure it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from fp16doctor.report import wording
from fp16doctor.report.pictures import canvas
from fp16doctor.report.pictures.heat_map import format_of
from fp16doctor.report.view_model import PictureView, Table
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.stream import StreamBlock, StreamSize

_LEAST_BLOCKS = 2
_MOST_ROWS = 200
_NAMES = ("as run", "under the cure")
_STYLES = ((canvas.SECOND, "s"), (canvas.FIRST, "o"))


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the stream of the first cure that has one, the recommended one before others."""
    chosen = diagnosis.recommendation.prescriptions
    order = sorted(range(len(diagnosis.prescriptions)), key=lambda i: (i not in chosen, i))
    cures = (diagnosis.prescriptions[i] for i in order)
    cure = next((c for c in cures if len(c.verification.stream) >= _LEAST_BLOCKS), None)
    if cure is None:
        return None
    blocks, limits = cure.verification.stream, format_of(diagnosis)
    return PictureView(
        name="residual-stream",
        title="Residual stream by block: as run, and under the cure",
        caption=(
            "Solid the standard deviation, dotted the largest magnitude (amax) behind the addition "
            "of each block, in the fp32 replay of the first step. The cure: "
            f"{cure.remedy.title.replace('`', '')}."
        ),
        svg=canvas.drawn(
            "residual-stream", 3.4, lambda f: _draw(f, blocks, limits), right=0.5 + 1.6
        ),
        table=_table(blocks),
    )


def _draw(figure: Any, blocks: Sequence[StreamBlock], limits: FormatLimits | None) -> None:
    axes = figure.subplots()
    sides = ([b.before for b in blocks], [b.after for b in blocks])
    for name, sizes, (color, marker) in zip(_NAMES, sides, _STYLES, strict=True):
        for label, dash, value in (("std", "-", _std), ("amax", ":", _amax)):
            points = [(i, value(s)) for i, s in enumerate(sizes, 1)]
            shown = [(i, v) for i, v in points if isfinite(v) and v > 0]
            axes.plot([i for i, _ in shown], [v for _, v in shown], color=color, marker=marker,
                      linestyle=dash, markersize=3, linewidth=1.4,
                      label=f"{label}, {name}")  # fmt: skip
    axes.set_yscale("log", base=2)
    if limits is not None and max(s.amax for side in sides for s in side) * 16 > limits.max:
        axes.axhline(limits.max, color=canvas.BAD, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.annotate(f"{limits.name} max", (0, limits.max), xycoords=("axes fraction", "data"),
                      xytext=(4, 2), textcoords="offset points", va="bottom", fontsize=8,
                      color=canvas.SOFT)  # fmt: skip
    axes.set_xlabel("block")
    axes.yaxis.set_major_formatter(lambda value, place: wording.number(value))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 0.85), fontsize=8)


def _std(size: StreamSize) -> float:
    return size.std


def _amax(size: StreamSize) -> float:
    return size.amax


def _table(blocks: Sequence[StreamBlock]) -> Table:
    kinds: tuple[tuple[str, Callable[[StreamSize], float]], ...] = (("std", _std), ("amax", _amax))
    head = ("block", "module", *(f"{kind}, {name}" for kind, _ in kinds for name in _NAMES))
    rows = tuple(
        (str(i), b.place or "root module",
         *(wording.number(value(size)) for _, value in kinds for size in (b.before, b.after)))
        for i, b in enumerate(blocks[:_MOST_ROWS], 1)
    )  # fmt: skip
    left = len(blocks) - len(rows)
    more = f"… and {wording.plural(left, 'more block')} (in the JSON)" if left else ""
    return Table(head, rows, more)
