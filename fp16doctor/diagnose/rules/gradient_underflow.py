"""Gradients become zero in a 16-bit format, or keep too few bits below its normal numbers.

What it checks:
    The gradient of each parameter in the run against the same step replayed in fp32: the share of
    the sum of magnitudes at elements that are zero as run and not in the replay. Zeros that are
    zero in the replay too (ReLU, masks, dropout, padding, zero weights) do not count, and neither
    does a gradient that is zero but for rounding (a bias in front of BatchNorm).

Why it matters:
    fp16 rounds magnitudes up to 2⁻²⁵ to zero, and keeps 10 bits at 2⁻¹⁴ but 1 at 2⁻²⁴. A layer
    whose gradient is lost does not learn, and nothing says so: the loss stays finite.

Example:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = 1e-6 * criterion(model(x), y)
    loss.backward()            # no loss scale

Remedy:
    Multiply the loss by a scale before backward and divide the gradients by it afterwards:
    torch.amp.GradScaler does both. bf16 has the range of fp32.

References:
    Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2

from fp16doctor.diagnose.limits import limits
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import counted, number, place, power
from fp16doctor.diagnose.shares import (
    LOST_TOTAL,
    coarse_gradients,
    entry_into_underflow,
    finite_traces,
    lost_gradients,
    lost_share,
    lost_update,
    sink_error,
    total_lost,
)
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.precision import GradientLoss, OpLoss
from fp16doctor.schema.trace import ReplayTrace

# Shares of the update that is lost: from here on an error, and below here a note.
_ERROR_SHARE, _NOTE_SHARE = 0.1, 1e-4


@rule(code="FD201", name="gradient-underflow", needs=("traces",))
def gradient_underflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding where gradients are lost in at least half of the examined steps."""
    looked_at = [t for t in finite_traces(seen) if t.precision and t.precision.gradients]
    hit = [t for t in looked_at if lost_gradients(t) or total_lost(t) >= LOST_TOTAL]
    if hit and 2 * len(hit) >= len(looked_at):
        yield _finding(max(hit, key=_badness), len(hit), len(looked_at))
        return
    coarse = [t for t in looked_at if coarse_gradients(t)]
    if coarse and 2 * len(coarse) >= len(looked_at):
        yield _coarse(max(coarse, key=_error), len(coarse), len(looked_at))


def _badness(trace: ReplayTrace) -> tuple[float, int, int]:
    return lost_update(trace), sum(g.total for g in lost_gradients(trace)), -trace.step


def _error(trace: ReplayTrace) -> tuple[float, int]:
    return sink_error(trace, "gradients"), -trace.step


def _coarse(trace: ReplayTrace, hit: int, looked_at: int) -> Finding:
    assert trace.precision is not None
    hurt, entry = coarse_gradients(trace), entry_into_underflow(trace)
    assert entry is not None, "coarse behind it"
    worst, error = max(hurt, key=lambda g: g.error or 0.0), sink_error(trace, "gradients")
    all_of = counted(len(trace.precision.gradients), "parameter")
    return Finding(
        code="FD201",
        name="gradient-underflow",
        severity=Severity.ERROR if error**2 >= _ERROR_SHARE else Severity.WARNING,
        fault=Fault.UNDERFLOW,
        what=(
            f"gradients of {len(hurt)} of {all_of} keep too few bits in {entry.format}: "
            f"`{worst.name}` is {number(100 * (worst.error or 0.0))} % off"
        ),
        cause=(
            f"Below {power(int(log2(limits(entry.format).smallest_normal)))} {entry.format} keeps "
            f"fewer bits the smaller a value is. {_behind(entry)} Over all parameters the gradient "
            f"is {number(100 * error)} % off. Seen in {hit} of {looked_at} steps."
        ),
        site=entry.site,
        evidence=(
            Evidence(
                f"gradient error of `{worst.name}`",
                worst.error or 0.0,
                f"replayed:{trace.reference}",
                format=entry.format,
            ),
        ),
        consequences=len(hurt) - 1,
        reaches=("gradients",),
        advice=_advice(entry, entry.format),
    )


def _finding(trace: ReplayTrace, hit: int, looked_at: int) -> Finding:
    assert trace.precision is not None
    gradients = trace.precision.gradients
    lost = lost_gradients(trace) or [max(gradients, key=lost_share)]
    worst = max(lost, key=lambda g: (lost_share(g), g.mass))
    entry = entry_into_underflow(trace)
    share, severity = total_lost(trace), _severity(trace)
    format_name = entry.format if entry is not None else "fp16"
    earlier = entry is not None and worst.site is not None and entry.site.index < worst.site.index
    return Finding(
        code="FD201",
        name="gradient-underflow",
        severity=severity,
        fault=Fault.UNDERFLOW,
        what=_what(worst, lost, gradients, format_name),
        cause=_cause(entry, worst, share, format_name) + f" Seen in {hit} of {looked_at} steps.",
        site=worst.site or (entry.site if entry is not None else None),
        cause_site=entry.site if earlier and entry is not None else None,
        evidence=(_evidence(worst, format_name, trace.reference),),
        consequences=len(lost) - 1,
        reaches=("gradients",),
        advice="" if severity is Severity.NOTE else _advice(entry, format_name),
    )


def _severity(trace: ReplayTrace) -> Severity:
    """By what does not reach the weights: a lost layer whose share is 1e-8 costs nothing."""
    share = lost_update(trace)
    if share >= _ERROR_SHARE:
        return Severity.ERROR
    return Severity.WARNING if share >= _NOTE_SHARE else Severity.NOTE


def _what(
    worst: GradientLoss, lost: list[GradientLoss], all_of: tuple[GradientLoss, ...], fmt: str
) -> str:
    percent = number(100 * lost_share(worst))
    return (
        f"gradients of {len(lost)} of {counted(len(all_of), 'parameter')} are lost in {fmt}: "
        f"{percent} % of `{worst.name}` is zero and should not be"
    )


def _cause(entry: OpLoss | None, worst: GradientLoss, share: float, fmt: str) -> str:
    smallest = power(int(log2(limits(fmt).smallest_subnormal)) - 1)
    text = f"Magnitudes up to {smallest} become 0 in {fmt}."
    if entry is not None:
        text += f" {_behind(entry)}"
    belongs = counted(worst.zeros_reference, "zero")
    return (
        f"{text} Over all parameters {number(100 * share)} % of the gradient is lost; "
        f"{belongs} of `{worst.name}` that the reference has too are not counted."
    )


def _behind(entry: OpLoss) -> str:
    return (
        f"Behind {place(entry.site)} the largest gradient is {number(entry.amax_reference)}, "
        f"{number(100 * entry.subnormal_share)} % is below the smallest normal number and "
        f"{number(100 * entry.lost_share)} % is zero."
    )


def _evidence(worst: GradientLoss, fmt: str, reference: str) -> Evidence:
    return Evidence(
        f"elements of `{worst.name}` that became zero",
        measured=float(worst.underflows),
        source=f"replayed:{reference}",
        limit=limits(fmt).smallest_subnormal / 2,
        limit_name="underflow_threshold",
        format=fmt,
        count=worst.underflows,
        total=worst.total,
    )


def _advice(entry: OpLoss | None, fmt: str) -> str:
    scaler = "scale the loss before backward and unscale the gradients before the step"
    if entry is None or not entry.amax_reference:
        return f"{scaler} (`torch.amp.GradScaler`), or train in bf16"
    least = ceil(log2(limits(fmt).smallest_normal / entry.amax_reference))
    at_least = f" by at least {power(least)}" if least > 0 else ""
    return f"{scaler}{at_least} (`torch.amp.GradScaler`), or train in bf16"
