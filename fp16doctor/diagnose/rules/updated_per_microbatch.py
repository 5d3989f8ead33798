"""Scaled gradients are added to gradients that were already divided by the loss scale.

What it checks:
    A backward on a scaled loss that adds to gradients on which `scaler.unscale_` or `scaler.step`
    has worked since they were last set to zero: the scaler is stepped or updated in each
    micro-batch while gradients accumulate.

Why it matters:
    The sum holds micro-batches with different factors: the later ones weigh more by the loss
    scale, and the earlier ones vanish beside them.

Example:
    for batch in micro_batches:
        scaler.scale(loss(batch)).backward()
        scaler.unscale_(optimizer)        # in each micro-batch
        scaler.update()

Remedy:
    Call `scaler.unscale_`, `scaler.step` and `scaler.update` once, after the last backward of the
    accumulation, and set the gradients to zero after each step.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation"
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import (
    scale_evidence,
    scale_words,
    scaled,
    seen_in,
)
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageKind


@rule(
    code="FD405",
    name="updated-per-microbatch",
    needs=("recording",),
    explains=("FD406", "FD20"),
)
def updated_per_microbatch(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per backward that adds to unscaled gradients."""
    for fact in seen.used(UsageKind.MIXED_SCALES):
        if not scaled(fact):
            continue
        factor = scale_words(fact)
        yield Finding(
            code="FD405",
            name="updated-per-microbatch",
            severity=Severity.ERROR,
            fault=Fault.MISUSE,
            what=f"gradients scaled by {factor} are added to gradients already unscaled",
            cause=(
                "`scaler.unscale_` or `scaler.step` ran on these gradients, they were not set to "
                f"zero, and backward accumulates onto them. {seen_in(fact)}"
            ),
            site=fact.site,
            evidence=scale_evidence(fact),
            reaches=("gradients",),
            advice=(
                "call `scaler.unscale_(optimizer)`, `scaler.step(optimizer)` and "
                "`scaler.update()` once, after the last backward of the accumulation, then "
                "`optimizer.zero_grad()`"
            ),
        )
