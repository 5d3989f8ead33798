"""GradScaler lowers the loss scale again and again, and the optimizer is hardly ever stepped.

What it checks:
    Whether a run with a GradScaler ends in three or more skipped attempts, skips more than half of
    ten or more attempts beyond a settled warm-up, or lets the scale fall below 1. Whether the
    scale is raised so often that more than a quarter of the attempts are skipped for it. A warning
    where most steps are taken and the last ones are not all skipped, else an error.

Why it matters:
    A skipped step leaves the weights as they are. A few skips at the start find the scale; skips
    without end mean that a value is non-finite at any scale, born in the forward pass or in the
    data, which no loss scale changes. A scale below 1 makes small gradients smaller still.

Example:
    scaler.step(optimizer)    # step 40: scale 1.2e-7, every step since 8 skipped

Remedy:
    Repair the op that makes the value non-finite. Another init_scale only delays the collapse.
    Where the scale is raised too often, a growth_interval like the default of 2000.

References:
    PyTorch documentation, torch.amp.GradScaler; https://github.com/pytorch/pytorch/issues/99640
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import event_behind_skips
from fp16doctor.diagnose.measures import LOST_ATTEMPTS, scales_of, trailing_skips
from fp16doctor.diagnose.raised_scale import Raises, raises_of
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number, place
from fp16doctor.schema.finding import SCALE_RAISED, Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import OutcomeKind, StepInfo

_USUAL_FACTOR = 2.0  # growth_factor of torch.amp.GradScaler
_ENOUGH_ATTEMPTS = 10  # from here on a share of skipped ones says something

_BELOW_ONE = "the scale is below 1"

Attempts = tuple[StepInfo, ...]


@rule(code="FD401", name="collapsing-loss-scale", needs=("recording", "scaler"))
def collapsing_loss_scale(seen: Observations) -> Iterator[Finding]:
    """Yield one finding where the optimizer is hardly ever stepped."""
    attempts = seen.scaler_steps()
    raised = raises_of(attempts) if seen.final and len(attempts) >= _ENOUGH_ATTEMPTS else None
    reason = _reason(seen, attempts)
    if raised is not None and reason != _BELOW_ONE:
        yield _raised(seen, attempts, raised)
    elif reason:
        yield _finding(seen, attempts, reason)


def _reason(seen: Observations, attempts: Attempts) -> str:
    skipped, last_skips = sum(s.skipped for s in attempts), trailing_skips(attempts)
    if skipped and min(scales_of(attempts), default=1.0) < 1:
        return _BELOW_ONE
    if not seen.final:
        return ""
    if last_skips >= LOST_ATTEMPTS and not _cut_in_warm_up(seen, attempts):
        return f"the last {last_skips} attempts were all skipped"
    most = len(attempts) >= _ENOUGH_ATTEMPTS and skipped > len(attempts) / 2
    if most and not _healed_after_warm_up(attempts):
        return "most attempts were skipped"
    return ""


def _healed_after_warm_up(attempts: Attempts) -> bool:
    """From the first successful attempt on at most one was skipped: the scale was only too high."""
    first = next((i for i, s in enumerate(attempts) if not s.skipped), len(attempts))
    return first < len(attempts) and sum(s.skipped for s in attempts[first:]) <= 1


def _cut_in_warm_up(seen: Observations, attempts: Attempts) -> bool:
    """The run was stopped from outside before its scale could settle; nothing can be said yet."""
    stopped = seen.recording.run.outcome.kind is OutcomeKind.STOPPED
    return stopped and all(s.skipped for s in attempts) and len(attempts) < _ENOUGH_ATTEMPTS


def _finding(seen: Observations, attempts: Attempts, reason: str) -> Finding:
    taken, event = sum(not s.skipped for s in attempts), event_behind_skips(seen)
    site = None if event is None else event.site
    scales = scales_of(attempts)
    fell = f" from {number(scales[0])} to {number(scales[-1])}" if scales else ""
    return Finding(
        code="FD401",
        name="collapsing-loss-scale",
        severity=_severity(attempts, taken),
        fault=Fault.LOSS_SCALE,
        what=(
            f"the loss scale goes{fell}: "
            f"{taken} of {len(attempts)} optimizer steps were taken, {reason}"
        ),
        cause=_cause(site),
        site=site,
        evidence=_evidence(attempts, taken, scales),
        reaches=() if event is None else event.reaches,
        advice=_advice(site),
    )


def _severity(attempts: Attempts, taken: int) -> Severity:
    """An error where training stopped, or was stopped more often than not.

    Where most steps are taken and the last ones are not all skipped, training goes on at a lower
    scale: near to harm, and none yet.
    """
    goes_on = trailing_skips(attempts) < LOST_ATTEMPTS and 2 * taken > len(attempts)
    return Severity.WARNING if goes_on else Severity.ERROR


def _raised(seen: Observations, attempts: Attempts, raised: Raises) -> Finding:
    taken, event = sum(not s.skipped for s in attempts), event_behind_skips(seen)
    scales, skipped = scales_of(attempts), len(attempts) - taken
    steps = "step" if round(raised.interval) == 1 else "steps"
    back = "" if raised.factor <= _USUAL_FACTOR else f" and `growth_factor={_USUAL_FACTOR:g}`"
    return Finding(
        code="FD401",
        name="collapsing-loss-scale",
        severity=_severity(attempts, taken),
        fault=Fault.LOSS_SCALE,
        what=(
            f"GradScaler raised the loss scale {raised.times} times, and {skipped} of "
            f"{len(attempts)} optimizer steps were skipped for it"
        ),
        cause=(
            f"After about {round(raised.interval)} {steps} without a non-finite gradient "
            f"GradScaler multiplies the scale by {number(raised.factor)} (`growth_factor` after "
            "`growth_interval` steps). It soon is above what the gradients have room for again, "
            "and each step above it is skipped."
        ),
        site=None if event is None else event.site,
        evidence=(
            *_evidence(attempts, taken, scales),
            Evidence(SCALE_RAISED, float(raised.times), "recorded"),
        ),
        advice=(
            f"make the GradScaler with a larger `growth_interval`, its default is 2000{back}; "
            "another `init_scale` is raised as well"
        ),
    )


def _cause(site: OpSite | None) -> str:
    halved = "GradScaler halves the scale and skips the step after every non-finite gradient."
    if site is None:
        return f"{halved} No examined step shows the op that made it non-finite."
    return f"{halved} It was made by {place(site)}."


def _advice(site: OpSite | None) -> str:
    if site is None:
        return "examine one of the skipped steps to find the op that made the gradient non-finite"
    return f"repair {place(site)}; another `init_scale` only delays the collapse"


def _evidence(attempts: Attempts, taken: int, scales: list[float]) -> tuple[Evidence, ...]:
    skipped = len(attempts) - taken
    steps = Evidence("skipped steps", skipped, "recorded", count=skipped, total=len(attempts))
    if not scales:
        return (steps,)
    return steps, Evidence("loss scale", scales[-1], "recorded", scales[0], "loss scale at start")
