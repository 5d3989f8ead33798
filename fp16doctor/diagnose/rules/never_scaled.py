"""Gradients are divided by a loss scale that their loss was never multiplied by.

What it checks:
    `scaler.unscale_` or `scaler.step` on gradients of a backward whose loss is not what
    `scaler.scale` returned: its result was dropped, or only one of several losses carries it.

Why it matters:
    These gradients are too small by the scale: with 65536 an update that should be 1e-3 is 1.5e-8
    and is lost beside the weight. fp16 gradients also underflow as without any scaler.

Example:
    scaler.scale(loss)            # the product is dropped
    loss.backward()
    scaler.step(optimizer)        # divides by the scale

Remedy:
    `scaler.scale(loss).backward()`, for every loss whose gradients the scaler divides.

References:
    PyTorch documentation, torch.amp.GradScaler.scale; Automatic Mixed Precision examples,
    "Working with multiple losses"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import (
    line_of,
    scale_evidence,
    scale_free,
    scale_words,
    scaled,
    seen_in,
)
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import BESIDE_SCALED, UsageFact, UsageKind


@rule(code="FD410", name="never-scaled", needs=("recording",), explains=("FD20", "FD407"))
def never_scaled(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per backward on a loss without the scale."""
    for fact in seen.used(UsageKind.NEVER_SCALED):
        if not scaled(fact):
            continue
        factor = scale_words(fact)
        yield Finding(
            code="FD410",
            name="never-scaled",
            severity=_severity(fact),
            fault=Fault.MISUSE,
            what=f"gradients of a loss without a scale are divided by {factor}",
            cause=f"{_cause(fact)} {seen_in(fact)}",
            site=fact.site,
            evidence=scale_evidence(fact),
            reaches=("gradients",),
            advice=(
                f"call backward{line_of(fact.site)} on what `scaler.scale` returns for this loss: "
                "`scaler.scale(loss).backward()`"
            ),
        )


def _severity(fact: UsageFact) -> Severity:
    hidden = scale_free(fact.optimizer) and fact.detail != BESIDE_SCALED
    return Severity.WARNING if hidden else Severity.ERROR


def _cause(fact: UsageFact) -> str:
    if fact.detail == BESIDE_SCALED:
        return (
            "Another loss of the step carries the scale, and this one does not; the scaler divides "
            "the sum of their gradients, in which this loss counts too little by the scale."
        )
    cause = (
        "Backward ran on a loss that `scaler.scale` had not multiplied, and the scaler divides "
        "the gradients: the update is too small by the scale."
    )
    if scale_free(fact.optimizer):
        return f"{cause} {fact.optimizer} divides by its running norm, which hides it, but for eps."
    return cause
