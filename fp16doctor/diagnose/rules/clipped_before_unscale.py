"""Gradients are clipped, or their norm is read, while they still carry the loss scale.

What it checks:
    Gradients of a scaled loss that are clamped, or multiplied by a factor computed from their own
    norm, between backward and the division by the scale. A norm that is only read is a note.

Why it matters:
    The threshold meets gradients that are 2^k too large, and the division comes afterwards: the
    gradients that are applied are clipped to threshold / scale. With a scale of 65536 a
    threshold of 1 acts like one of 1.5e-5, and the loss hardly moves.

Example:
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)    # still scaled
    scaler.step(optimizer)

Remedy:
    Call `scaler.unscale_(optimizer)` between backward and clipping; `scaler.step` then does not
    divide again.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Working with unscaled gradients";
    https://github.com/pytorch/pytorch/issues/40907
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.sentences import number
from fp16doctor.diagnose.usage_words import line_of, scale_evidence, scaled, seen_in
from fp16doctor.schema.finding import Evidence, Fault, Finding, Severity
from fp16doctor.schema.usage import UsageFact, UsageKind

_UNSCALE = "call `scaler.unscale_(optimizer)` after backward and before"


@rule(code="FD402", name="clipped-before-unscale", needs=("recording",))
def clipped_before_unscale(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per line that clips scaled gradients, or reads their norm."""
    for fact in seen.used(UsageKind.SCALED_CLIP, UsageKind.SCALED_NORM):
        if scaled(fact):
            yield _clip(fact) if fact.kind is UsageKind.SCALED_CLIP else _norm(fact)


def _clip(fact: UsageFact) -> Finding:
    idle = fact.coefficient is not None and fact.coefficient >= 1
    scale, limit = _scale(fact), fact.limit
    to = "" if limit is None else f" to {number(limit)}"
    return Finding(
        code="FD402",
        name="clipped-before-unscale",
        severity=Severity.NOTE if idle else Severity.ERROR,
        fault=Fault.MISUSE,
        what=f"gradients are clipped{to} while they carry the loss scale{scale}",
        cause=f"{_mechanism(fact)} {_effect(fact, idle)} {seen_in(fact)}",
        site=fact.site,
        evidence=_evidence(fact),
        reaches=() if idle else ("gradients",),
        advice=f"{_UNSCALE} the clipping{line_of(fact.site)}",
    )


def _mechanism(fact: UsageFact) -> str:
    if fact.loss_scale is None or fact.limit is None:
        return "The gradients are divided by the scale after they are clipped, not before."
    return (
        f"The gradients are divided by {number(fact.loss_scale)} after they are clipped, so what "
        f"is applied is clipped to {number(fact.limit)} / {number(fact.loss_scale)} = "
        f"{number(fact.limit / fact.loss_scale)}."
    )


def _effect(fact: UsageFact, idle: bool) -> str:
    if idle:
        return "The threshold was not reached."
    size, scale = fact.coefficient, fact.loss_scale
    if size == 0:
        return (
            "Clipping multiplied the gradients by 0, since the norm of the scaled gradients is inf "
            "or the factor is below the smallest number of its format: the update is 0."
        )
    if size is None or scale is None or not 0 < size < 1:
        return "The update is too small by up to the loss scale."
    # Unscaled, the norm is scale times smaller, and clipping multiplies by min(1, scale × size).
    too_small = min(1.0, scale * size) / size
    return (
        f"Clipping multiplied the gradients by {number(size)}, which is {number(too_small)} times "
        "less than the same threshold gives on unscaled gradients."
    )


def _norm(fact: UsageFact) -> Finding:
    return Finding(
        code="FD402",
        name="clipped-before-unscale",
        severity=Severity.NOTE,
        fault=Fault.MISUSE,
        what=f"a norm of gradients is taken while they carry the loss scale{_scale(fact)}",
        cause=f"The norm is larger than that of the gradient by the loss scale. {seen_in(fact)}",
        site=fact.site,
        evidence=scale_evidence(fact),
    )


def _scale(fact: UsageFact) -> str:
    return "" if fact.loss_scale is None else f" {number(fact.loss_scale)}"


def _evidence(fact: UsageFact) -> tuple[Evidence, ...]:
    found = list(scale_evidence(fact))
    if fact.coefficient is not None:
        found.append(Evidence("clipping factor", fact.coefficient, "recorded"))
    return tuple(found)
