"""A gradient, or a value of the optimizer, is too large for its format.

What it checks:
    Ops of backward and of the optimizer phase (unscale, clip, step) whose inputs are finite and
    whose output has an infinity where the exact result is finite. The size without the loss
    scale tells a scale that is too high from a gradient that is too large by itself.

Why it matters:
    Loss scaling multiplies every gradient; fp16 gradients end at 65504 like everything else in
    fp16. GradScaler starts at 65536 and halves after every overflow, so a few skipped steps at
    the start are how it works. Skips without end, or a scale set by hand, stop the training.

Example:
    (loss * 65536).backward()    # fp16 gradients above 1 overflow

Remedy:
    Too high a scale: a lower init_scale, or leave it to GradScaler. Too large a gradient: keep
    the module in fp32 or train in bf16. A gradient norm: compute it in fp32.

References:
    Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, 3.2 (loss scaling);
    PyTorch documentation, torch.amp.GradScaler
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.causes import Cause, Words, as_finding, causes
from fp16doctor.diagnose.evidence import overflow_evidence
from fp16doctor.diagnose.families import NORMS, base_op
from fp16doctor.diagnose.limits import halvings_to_fit
from fp16doctor.diagnose.measures import is_scaled_gradient, magnitude
from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import (
    fate,
    in_fp32,
    maximum,
    number,
    op_in,
    power,
    subject,
    wider,
)
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.trace import EventKind


@rule(code="FD104", name="gradient-overflow", needs=("recording", "traces"))
def gradient_overflow(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per op of backward or optimizer that bore an infinity."""
    for cause in causes(seen, "gradient-overflow"):
        scale_too_high = cause.handled and is_scaled_gradient(cause.trace, cause.event)
        fault = Fault.LOSS_SCALE if scale_too_high else Fault.OVERFLOW
        words = Words(
            _what(cause, scale_too_high),
            f"{_why(cause, scale_too_high)} {fate(cause)}",
            _advice(cause, scale_too_high),
        )
        yield as_finding(cause, "FD104", fault, words, _evidence(cause))


def _halvings(cause: Cause) -> int:
    size = magnitude(cause.event)
    return 0 if size is None else halvings_to_fit(size, cause.event.format)


def _what(cause: Cause, scale_too_high: bool) -> str:
    event, size, scale = cause.event, magnitude(cause.event), cause.trace.loss_scale
    if event.kind is EventKind.INTERNAL_OVERFLOW:
        return f"{op_in(event.site)} overflows {event.format} while it accumulates"
    name = f"gradient in {subject(event.site)}"
    if event.site.phase is Phase.OPTIMIZER:
        name = f"{op_in(event.site)} in the optimizer phase"
    reach = "passes" if size is None else f"reaches {number(size)}, above"
    scaled = f" at loss scale {number(scale)}" if scale and scale_too_high else ""
    verdict = f": the scale is too high by {power(_halvings(cause))}" if scale_too_high else ""
    return f"{name} {reach} {maximum(event.format)}{scaled}{verdict}"


def _why(cause: Cause, scale_too_high: bool) -> str:
    event, size, scale = cause.event, magnitude(cause.event), cause.trace.loss_scale
    if event.kind is EventKind.INTERNAL_OVERFLOW:
        return f"A partial sum inside the op passes {maximum(event.format)}."
    if size is None:
        return f"The exact result has no {event.format} value."
    if scale_too_high and scale:
        return f"Without the loss scale the value is {number(size / scale)}, which fits."
    beyond = f"The exact result exceeds the {event.format} range by {power(_halvings(cause))}"
    if scale and scale > 1:
        return f"{beyond}; without the loss scale {number(scale)} it is {number(size / scale)}."
    return f"{beyond}."


def _advice(cause: Cause, scale_too_high: bool) -> str:
    event, k = cause.event, _halvings(cause)
    if cause.severity is Severity.NOTE:
        return ""
    if base_op(event.site.op) in NORMS and event.site.phase is Phase.OPTIMIZER:
        return "compute the norm in fp32: `p.grad.float()`"
    keep = in_fp32(event.site) + wider(event.format)
    if scale_too_high and cause.trace.loss_scale:
        fitting = f"{cause.trace.loss_scale / 2**k:.10g}"
        return f"start at a lower scale: `torch.amp.GradScaler(init_scale={fitting})`, or {keep}"
    if cause.trace.found_inf is None and event.site.phase is Phase.BACKWARD and k:
        return (
            f"divide the loss scale, where there is one, by {power(k)}, or use "
            f"`torch.amp.GradScaler`, which lowers it by itself; else {keep}"
        )
    return keep


def _evidence(cause: Cause) -> tuple[Evidence, ...]:
    numbers = overflow_evidence(cause)
    if cause.trace.loss_scale is None:
        return numbers
    return (*numbers, Evidence("loss scale", cause.trace.loss_scale, "recorded"))
