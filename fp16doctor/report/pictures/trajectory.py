"""The losses of consecutive steps, replayed as one run under several policies.

Must not know how a trajectory is replayed.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from fp16doctor.report import wording
from fp16doctor.report.pictures import canvas
from fp16doctor.report.view_model import PictureView, Table
from fp16doctor.schema.diagnosis import Diagnosis

_LEAST_STEPS = 2
_MOST_LINES = 6
_STYLES = (
    (canvas.FIRST, "-", "o"),
    (canvas.SECOND, "--", "s"),
    (canvas.THIRD, "-.", "^"),
    (canvas.FOURTH, ":", "D"),
    (canvas.SOFT, (0, (5, 1)), "v"),
    (canvas.INK, (0, (3, 1, 1, 1)), "P"),
)
_STEPS, _AS_RUN, _FP32 = "steps", "as run", "fp32"
_LABEL = 100
_LINE = 0.19  # inches of a line of the legend
_DECADES = 100  # between the smallest and the largest loss from which the axis is logarithmic
_HEIGHT = 2.7  # inches of the losses and their axis


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the losses, or None where no consecutive steps were replayed."""
    steps = [int(s) for s in diagnosis.trajectory.get(_STEPS, ())]
    lines = lines_of(diagnosis)
    if len(steps) < _LEAST_STEPS or len(lines) < 2:
        return None
    shown = dict(list(lines.items())[:_MOST_LINES])
    left = len(lines) - len(shown)
    legend = _LINE * len(shown)
    return PictureView(
        name="trajectory",
        title="Trajectory: the same batches as run and under the cures",
        caption=(
            f"Loss over {wording.plural(len(steps), 'consecutive step')}, replayed with weights "
            "and optimizer state carried on; × at the head: inf or NaN, where a line ends."
        ),
        svg=canvas.drawn(
            "trajectory", _HEIGHT + legend, lambda f: _draw(f, steps, shown), below=legend
        ),
        table=_table(steps, shown, left),
    )


def lines_of(diagnosis: Diagnosis) -> dict[str, tuple[float, ...]]:
    """Return losses by what they are called: as run, the recommended cure, fp32, other cures.

    Candidates that no cure of the report is made of come last, by the places kept in fp32.
    """
    known = {n: v for n, v in diagnosis.trajectory.items() if v and n != _STEPS}
    found = {_AS_RUN: known.pop(_AS_RUN)} if _AS_RUN in known else {}
    chosen = diagnosis.recommendation.prescriptions
    cures = sorted(enumerate(diagnosis.prescriptions), key=lambda c: c[0] not in chosen)
    for place, cure in cures:
        if _FP32 in known and place not in chosen:
            found[_FP32] = known.pop(_FP32)
        losses, title = cure.verification.losses, cure.remedy.title.replace("`", "")
        if losses and not (cure.remedy.value == _FP32 and _FP32 in found):
            found.setdefault(f"recommended: {title}" if place in chosen else title, losses)
    return found | {n: v for n, v in known.items() if n == _FP32 or v not in found.values()}


def _draw(figure: Any, steps: list[int], lines: dict[str, tuple[float, ...]]) -> None:
    axes = figure.subplots()
    for (name, values), (color, dash, marker) in zip(lines.items(), _STYLES, strict=False):
        points = [(s, v) for s, v in zip(steps, values, strict=False) if isfinite(v)]
        label = wording.shortened(wording.visible(name), _LABEL)
        axes.plot([s for s, _ in points], [v for _, v in points], color=color, linestyle=dash,
                  marker=marker, markersize=4, linewidth=1.4, label=label)  # fmt: skip
        lost = [s for s, v in zip(steps, values, strict=False) if not isfinite(v)]
        axes.plot(lost, [0.97] * len(lost), linestyle="none", marker="x", color=color,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    finite = [v for values in lines.values() for v in values if isfinite(v)]
    if finite and 0 < min(finite) < max(finite) / _DECADES:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 0.0), fontsize=8, borderpad=0.2,
                bbox_transform=figure.transFigure, labelspacing=0.3)  # fmt: skip


def _table(steps: list[int], lines: dict[str, tuple[float, ...]], left: int) -> Table:
    head = ("step", *lines)
    rows = tuple(
        (
            str(step),
            *(wording.loss(v[i]) if i < len(v) else wording.NOTHING for v in lines.values()),
        )
        for i, step in enumerate(steps)
    )
    more = f"… and {wording.plural(left, 'more policy', 'more policies')} (in the JSON)"
    return Table(head, rows, more if left else "")
