"""What the steps of a run say by themselves, as short facts: losses, skipped steps, loss scales.

Must not know findings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, quantiles

from fp16doctor.report import wording
from fp16doctor.schema.recording import StepInfo

_FALL = 4  # a loss scale that fell by at least this factor is part of the story
_FEWEST = 9  # losses, so that a third of them has a median and quartiles

Steps = Sequence[StepInfo]


def nonfinite(loss: float | None) -> bool:
    """Whether a known loss is inf or NaN."""
    return loss is not None and not math.isfinite(loss)


def loss_words(steps: Steps) -> str:
    """``the loss is NaN at every step (30 of 30)``, "" where each known loss is finite."""
    known = [s for s in steps if s.loss is not None]
    wrong = [s for s in known if nonfinite(s.loss)]
    if not wrong:
        return ""
    word = "NaN" if all(math.isnan(s.loss or 0.0) for s in wrong) else "not finite"
    return f"the loss is {word} {_when(known, wrong)}"


def _when(known: Steps, wrong: Steps) -> str:
    if len(known) > 1 and len(wrong) == len(known):
        return f"at every step ({wording.count(len(wrong))} of {wording.count(len(known))})"
    if len(wrong) > 1 and list(known[-len(wrong) :]) == list(wrong):
        return f"from step {wrong[0].step} on"
    if len(wrong) == 1:
        return f"at step {wrong[0].step}"
    first = wrong[0].step
    share = f"{wording.count(len(wrong))} of {wording.count(len(known))}"
    return f"at {share} steps (first at step {first})"


def no_update(steps: Steps) -> str:
    """``0 of 30 optimizer steps were taken``: the weights are those that the run began with."""
    if not steps or not all(s.skipped for s in steps):
        return ""
    return f"0 of {wording.plural(len(steps), 'optimizer step')} were taken"


def skips(steps: Steps) -> str:
    """``6 of 60 optimizer steps were skipped``, "" where none or all were."""
    skipped = sum(s.skipped for s in steps)
    if skipped in (0, len(steps)):
        return ""
    of = f"{wording.count(skipped)} of {wording.count(len(steps))}"
    return f"{of} optimizer steps were skipped"


def scale_words(steps: Steps) -> str:
    """``the loss scale fell from 65536 to 2⁻⁴``, "" where it fell little or not at all."""
    scales = _scales(steps)
    if not scales or scales[-1] * _FALL > scales[0]:
        return ""
    return f"the loss scale fell from {wording.number(scales[0])} to {wording.number(scales[-1])}"


def settled(steps: Steps) -> str:
    """``3 of 50 optimizer steps were skipped (steps 0, 1 and 5) while the loss scale settled``.

    It has settled where at least as many steps follow the last skip as came up to it.
    """
    skipped = [s.step for s in steps if s.skipped]
    after = sum(s.step > skipped[-1] for s in steps) if skipped else 0
    scales = _scales(steps)
    if not scales or after < len(steps) - after or not all(s.found_inf for s in steps if s.skipped):
        return ""
    first, last = map(wording.number, (scales[0], scales[-1]))
    return (
        f"{skips(steps)} ({wording.steps_named(skipped)}) while the loss scale settled from "
        f"{first} to {last}: it starts high and is halved until the gradients fit"
    )


def _scales(steps: Steps) -> list[float]:
    """The scale of each step and the one that it leaves behind, in order."""
    pairs = ((s.loss_scale, s.next_loss_scale) for s in steps)
    return [scale for pair in pairs for scale in pair if scale is not None]


def course(steps: Steps) -> str:
    """``the loss went from 2.3141 to 0.97201``, "" with fewer than two finite losses."""
    losses = _finite_losses(steps)
    if len(losses) < 2:
        return ""
    return f"the loss went from {wording.loss(losses[0])} to {wording.loss(losses[-1])}"


def no_fall(steps: Steps) -> str:
    """``the loss does not fall (4.3606 → 4.4169 over 60 steps)``, "" where it does.

    It does not where both hold: a loss of the last third of the steps still reaches the first one,
    and their median is not below the lower quartile of the first third. On losses without a trend
    each fails by chance about once in twenty times; one outlier makes neither.
    """
    losses = _finite_losses(steps)
    if len(losses) < _FEWEST:
        return ""
    third = len(losses) // 3
    early, late = losses[:third], losses[-third:]
    if max(late) < losses[0] or median(late) < quantiles(early, method="inclusive")[0]:
        return ""
    ends = f"{wording.loss(losses[0])} → {wording.loss(losses[-1])}"
    return f"the loss does not fall ({ends} over {wording.plural(len(losses), 'step')})"


def _finite_losses(steps: Steps) -> list[float]:
    """All known losses, none where one of them is not finite."""
    losses = [s.loss for s in steps if s.loss is not None]
    return losses if all(map(math.isfinite, losses)) else []
