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
_STEPS = "steps"
_LABEL = 36


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the losses, or None where no consecutive steps were replayed."""
    lines = {name: values for name, values in diagnosis.trajectory.items() if values}
    steps = [int(s) for s in lines.pop(_STEPS, ())]
    if len(steps) < _LEAST_STEPS or len(lines) < 2:
        return None
    shown = dict(list(lines.items())[:_MOST_LINES])
    left = len(lines) - len(shown)
    return PictureView(
        name="trajectory",
        title="Trajectory: the same batches under other policies",
        caption=(
            f"Loss over {wording.plural(len(steps), 'consecutive step')}, replayed with weights "
            "and optimizer state carried on; × at the head: inf or NaN, where a line ends."
        ),
        svg=canvas.drawn(
            "trajectory",
            3.2,
            lambda f: _draw(f, steps, shown),
            right=0.5 + canvas.margin([wording.shortened(n, _LABEL) for n in shown]),
        ),
        table=_table(steps, shown, left),
    )


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
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


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
