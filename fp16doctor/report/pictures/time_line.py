"""Loss, loss scale and skipped steps over the run.

Must not know how steps are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from fp16doctor.report import wording
from fp16doctor.report.pictures import canvas
from fp16doctor.report.view_model import PictureView, Table
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import StepInfo

_LEAST_STEPS = 3
_MOST_POINTS = 2000
_EDGE = 10  # rows of the table at either end


def picture(diagnosis: Diagnosis) -> PictureView | None:
    """Return the time line, or None for a run of a step or two."""
    steps = thinned(diagnosis.steps)
    if len(steps) < _LEAST_STEPS or all(s.loss is None for s in steps):
        return None
    scaled = any(s.loss_scale is not None for s in steps)
    return PictureView(
        name="time-line",
        title="Loss and loss scale" if scaled else "Loss",
        caption=_caption(diagnosis.steps, scaled=scaled),
        svg=canvas.drawn("time-line", 3.4 if scaled else 2.3, lambda f: _draw(f, steps, scaled)),
        table=_table(diagnosis.steps),
    )


def thinned(steps: Sequence[StepInfo]) -> list[StepInfo]:
    """Return at most _MOST_POINTS steps, the ones where something happened among them."""
    stride = -(-len(steps) // _MOST_POINTS)
    return [s for i, s in enumerate(steps) if i % stride == 0 or s.skipped or not _finite(s)]


def _finite(step: StepInfo) -> bool:
    return step.loss is None or isfinite(step.loss)


def _caption(steps: Sequence[StepInfo], *, scaled: bool) -> str:
    lost = sum(not _finite(s) for s in steps)
    skipped = sum(s.skipped for s in steps)
    parts = ["The loss of each step"]
    parts += [
        f"× at the foot: {wording.plural(lost, 'step')} with a loss that is inf or NaN"
    ] * bool(lost)
    parts += ["below it the loss scale as a power of two"] * scaled
    parts += [f"▼ {wording.plural(skipped, 'skipped step')}"] * bool(skipped)
    return "; ".join(parts) + "."


def _draw(figure: Any, steps: list[StepInfo], scaled: bool) -> None:
    rows = 2 if scaled else 1
    axes = figure.subplots(rows, 1, sharex=True, height_ratios=[3, 2][:rows], squeeze=False)[:, 0]
    _losses(axes[0], steps)
    if scaled:
        _scales(axes[1], steps)
    axes[-1].set_xlabel("step")


def _losses(axes: Any, steps: list[StepInfo]) -> None:
    known = [(s.step, s.loss) for s in steps if s.loss is not None and isfinite(s.loss)]
    axes.plot([x for x, _ in known], [y for _, y in known], color=canvas.FIRST, linewidth=1.4)
    if len(known) < 2:
        axes.plot([x for x, _ in known], [y for _, y in known], color=canvas.FIRST, marker="o")
    lost = [s.step for s in steps if not _finite(s)]
    axes.plot(lost, [0.03] * len(lost), linestyle="none", marker="x", color=canvas.BAD,
              transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_ylabel("loss")
    if not known:  # matplotlib would invent a scale for nothing
        axes.set_yticks([])
        axes.set_xlim(steps[0].step - 0.5, steps[-1].step + 0.5)
        axes.text(0.5, 0.5, "no step has a finite loss", transform=axes.transAxes, ha="center",
                  va="center", color=canvas.SOFT)  # fmt: skip


def _scales(axes: Any, steps: list[StepInfo]) -> None:
    known = [(s.step, s.loss_scale) for s in steps if s.loss_scale]
    axes.step([x for x, _ in known], [y for _, y in known], where="post", color=canvas.SECOND,
              linewidth=1.4)  # fmt: skip
    axes.set_yscale("log", base=2)
    skipped = [(s.step, s.loss_scale) for s in steps if s.skipped and s.loss_scale]
    axes.plot([x for x, _ in skipped], [y for _, y in skipped], linestyle="none", marker="v",
              markersize=5, color=canvas.BAD)  # fmt: skip
    axes.set_ylabel("loss scale")
    axes.yaxis.set_major_formatter(lambda value, place: wording.number(value))


def _table(steps: Sequence[StepInfo]) -> Table:
    chosen = [s for i, s in enumerate(steps) if i < _EDGE or i >= len(steps) - _EDGE]
    rows = tuple(
        (str(s.step), wording.loss(s.loss), wording.number(s.loss_scale),
         "skipped" if s.skipped else "taken")
        for s in chosen
    )  # fmt: skip
    left = len(steps) - len(chosen)
    more = f"… and {wording.plural(left, 'more step')} (in the JSON)" if left else ""
    return Table(("step", "loss", "loss scale", "optimizer step"), rows, more)
