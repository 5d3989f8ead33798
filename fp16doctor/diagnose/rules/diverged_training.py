"""An update takes the loss far above its level, and fp32 makes the same update.

What it checks:
    The first step whose loss is more than a hundred times the median of those before, where no
    later one comes back. The step in front of it is replayed in fp32, optimizer included: its
    gradient and updated weights are the same there, and with them the loss of its *own* batch has
    risen as well, so that it is not the next batch that is off. Tenths, hundredths and so on of the
    update are tried on that batch: the first that lowers its loss says how far off the rate is.

Why it matters:
    What overflows afterwards overflows because the weights are far off. A loss scale, a keep-list
    or another format changes where the run ends, not that it diverges.

Example:
    scheduler = LambdaLR(optimizer, lambda step: 1.0 if step < 40 else 400.0)

Remedy:
    Lower the learning rate of that step, warm it up more slowly, or clip the gradients.

References:
    Goodfellow, Bengio, Courville, Deep Learning, section 8.2.4 (cliffs), for clipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from statistics import median

from fp16doctor.diagnose.levels import leaves_level
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number
from fp16doctor.diagnose.shares import GRADIENT_ERROR, LOSS_ERROR, sink_error
from fp16doctor.diagnose.usage_words import line_of
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.trace import ReplayTrace, ShorterUpdate
from fp16doctor.schema.usage import UsageKind

# Uses of the scaler or the optimizer that make another update than the script means to.
_MISUSES = (
    UsageKind.NEVER_UNSCALED,
    UsageKind.NEVER_SCALED,
    UsageKind.SCALED_CLIP,
    UsageKind.SCALED_PENALTY,
    UsageKind.UNSCALED_TWICE,
    UsageKind.MIXED_SCALES,
    UsageKind.STEPPED_TWICE,
    UsageKind.UNSCALED_INJECTION,
    UsageKind.STALE_CAST,
)


@dataclass(frozen=True, slots=True)
class _Jump:
    """The update that did it, and the losses around it."""

    update: ReplayTrace
    behind: ReplayTrace  # the step with the first loss that is off
    level: float  # median magnitude of the losses before
    loss: float
    reference: float  # the same loss in the reference
    again: float  # there, the loss of the update's own batch once it is made


@rule(
    code="FD116",
    name="diverged-training",
    needs=("recording", "traces"),
    explains=("FD10", "FD110", "FD112", "FD113", "FD115", "FD401"),
)
def diverged_training(seen: Observations) -> Iterator[Finding]:
    """Yield the update from which on the loss is another one, if fp32 makes it too."""
    jump = _jump(seen)
    if jump is None or jump.update.update_site is None or seen.used(*_MISUSES):
        return
    yield _finding(jump, jump.update.update_site, error=_ends_badly(seen, jump.behind.step))


def _ends_badly(seen: Observations, first: int) -> bool:
    """Tell whether anything that is not finite came of it, from step ``first`` on."""
    return any(
        not event.harmless and event.reaches
        for trace in seen.traces
        if trace.step >= first
        for event in trace.events
    )


def _finding(jump: _Jump, site: OpSite, *, error: bool) -> Finding:
    return Finding(
        code="FD116",
        name="diverged-training",
        severity=Severity.ERROR if error else Severity.NOTE,
        fault=Fault.NAN_BIRTH,
        what=(
            f"the update of step {site.step} takes the loss from about {number(jump.level)} to "
            f"{number(jump.loss)}, in the {jump.update.reference} replay as well"
        ),
        cause=(
            f"In {jump.update.reference} the gradient of step {site.step} differs by "
            f"{number(100 * sink_error(jump.update, 'gradients'))} % and the updated weights by "
            f"{number(100 * sink_error(jump.update, 'parameters'))} %; the loss of step "
            f"{jump.behind.step} is {number(jump.reference)} there, and that of step {site.step}'s "
            f"own batch {number(jump.again)}: no format, loss scale or keep-list changes it."
            f"{_shorter(jump.update.shorter)}"
        ),
        site=site,
        evidence=(
            Evidence("loss", jump.loss, "recorded"),
            Evidence("loss", jump.reference, f"replayed:{jump.update.reference}"),
            *_size(jump.update.shorter),
        ),
        reaches=("loss", "parameters"),
        advice=(
            f"lower the learning rate of step {site.step}{line_of(site)}"
            f"{_by(jump.update.shorter)}, warm it up more slowly, or clip the gradients"
        ),
    )


def _shorter(tried: ShorterUpdate | None) -> str:
    """What a part of the update would have done."""
    if tried is None:
        return ""
    size = f" The update is {number(100 * tried.ratio)} % of the size of the weights"
    if tried.share is None or tried.after is None:
        return f"{size}; no tried share of it lowers the loss of its own batch."
    return (
        f"{size}; {_part(tried.share)} of it, as of a learning rate as much lower, takes the loss "
        f"of its own batch from {number(tried.before)} to {number(tried.after)} in fp32."
    )


def _part(share: float) -> str:
    return f"1/{round(1 / share)}"


def _by(tried: ShorterUpdate | None) -> str:
    return "" if tried is None or tried.share is None else f" {round(1 / tried.share)}-fold or more"


def _size(tried: ShorterUpdate | None) -> Iterator[Evidence]:
    if tried is None:
        return
    yield Evidence("update over weights, ‖Δw‖/‖w‖,", tried.ratio, "replayed:fp32")
    if tried.share is not None and tried.after is not None:
        name = f"loss of the same batch with {_part(tried.share)} of the update"
        yield Evidence(name, tried.after, "replayed:fp32", tried.before, "before the update")


def _jump(seen: Observations) -> _Jump | None:
    known = [s for s in seen.recording.steps if s.loss is not None and isfinite(s.loss)]
    losses = [s.loss for s in known if s.loss is not None]
    for place, info in enumerate(known):
        if leaves_level(info.loss, losses[:place]):
            stays = all(leaves_level(x, losses[:place]) for x in losses[place:])
            return _proved(seen, info, losses[:place]) if stays else None
    return None


def _proved(seen: Observations, info: StepInfo, before: list[float]) -> _Jump | None:
    """Return the jump where both steps were replayed and fp32 does the same in both."""
    update, behind = seen.trace(info.step - 1), seen.trace(info.step)
    if update is None or behind is None or not behind.loss or behind.loss_reference is None:
        return None
    again = update.loss_after_update
    if any(not e.harmless for e in update.events) or again is None:
        return None
    if isfinite(again) and not leaves_level(again, before):
        return None
    same_update = sink_error(update, "gradients") <= GRADIENT_ERROR
    same_weights = sink_error(update, "parameters") <= LOSS_ERROR
    off = abs(behind.loss_reference / behind.loss - 1)
    if not (same_update and same_weights and off <= LOSS_ERROR) or info.loss is None:
        return None
    reference = info.loss * behind.loss_reference / behind.loss
    return _Jump(update, behind, median(map(abs, before)), info.loss, reference, again)
